// Mapped files (core/files.h) that change while they are read. One that is replaced or removed stays as it
// was, and nothing has to be done. One that is cut shorter or rewritten in place does not, so what was
// computed of it is worth nothing.
#pragma once

#include <memory>
#include <span>

#include "core/files.h"

namespace refold {

// Bytes of a mapped file that are gone, because it was cut shorter or its disk fails, end a process where
// they are read (SIGBUS). After this call they are zeros, and check_mapped_files() throws. For programs: a
// library leaves signals alone.
void guard_mapped_files();
// Throws Error(io), which names the file, if missing bytes were read; once for a file that is mapped no more.
// check_interrupt() calls it, and so does everything that is written before it gets its name.
void check_mapped_files();

// Throws Error(io) if a file was written to, or a part of it could not be read, since it was mapped.
void check_unchanged(const MappedFile& file);
void check_unchanged(std::span<const std::shared_ptr<const MappedFile>> files);

}  // namespace refold
