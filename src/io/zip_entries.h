// The files of a zip archive that are stored without compression, where they lie.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace refold {

// Name -> bytes. Throws Error(input) naming `path` when the archive is malformed, Error(unsupported) for
// compressed or encrypted entries and archives in several parts.
std::map<std::string, std::span<const std::byte>> stored_zip_entries(std::span<const std::byte> archive,
                                                                     const std::string& path);

}  // namespace refold
