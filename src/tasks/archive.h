// Reads data files as published: plain, compressed, or inside an archive.
#pragma once

#include <map>
#include <string>

namespace refold {

// The whole content of "path" (".bz2", ".gz" and ".xz" are unpacked) or of "archive.zip!member". Throws
// Error(io) when it cannot be read, Error(input) for a damaged archive, a missing member, and more than 1
// GiB.
std::string read_data_file(const std::string& path);

// True if the file, and in an archive the member, exists.
bool has_data_file(const std::string& path);

// The part of `path` that is a file on the disk.
std::string file_of(const std::string& path);

// SHA-256 of files on disk. Each file is read once, because an archive may have the items of many tasks.
class DataHashes {
public:
    // Throws Error(io) when the file cannot be read.
    const std::string& of(const std::string& file);
    size_t hashed() const { return hashed_; }  // files read so far

private:
    std::map<std::string, std::string> known_;
    size_t hashed_ = 0;
};

}  // namespace refold
