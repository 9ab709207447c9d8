// Data files as they are published: plain, compressed, or inside an archive.
#pragma once

#include <map>
#include <string>

namespace refold {

// The whole of "path", of which ".bz2", ".gz" and ".xz" are unpacked, or of "archive.zip!member".
// Throws Error(io) when it cannot be read, Error(input) for a damaged archive, one without that member, and
// for more than 1 GiB.
std::string read_data_file(const std::string& path);

// Whether the file, and in an archive the member, is there.
bool has_data_file(const std::string& path);

// The part of `path` that is a file on the disk.
std::string file_of(const std::string& path);

// SHA-256 of files on the disk. Each is read once: an archive has the items of many tasks.
class DataHashes {
public:
    // Throws Error(io) when it cannot be read.
    const std::string& of(const std::string& file);
    size_t hashed() const { return hashed_; }  // files that were read

private:
    std::map<std::string, std::string> known_;
    size_t hashed_ = 0;
};

}  // namespace refold
