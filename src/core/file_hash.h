// SHA-256 of whole files.
#pragma once

#include <string>

#include "core/files.h"

namespace refold {

// Lower-case hexadecimal. Reads the whole file, showing progress; its pages do not stay resident.
std::string file_sha256(const MappedFile& file);

// The same, cached under cache_directory()/sha256 by path, inode, size and times of change, so that a model
// is hashed only once. A cache that cannot be written is no error. Throws Error(io) when the file cannot be
// read.
std::string remembered_sha256(const std::string& path);

}  // namespace refold
