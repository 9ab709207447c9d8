// Memory-mapped input and atomic output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace refold {

// Read-only map of a whole file. Throws Error(io) when it cannot be opened.
class MappedFile {
public:
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::string& path() const { return path_; }
    // Drops the pages of `part` from this process: they no longer count as resident memory.
    void release(std::span<const std::byte> part) const;

private:
    std::string path_;
    const std::byte* data_ = nullptr;
    size_t size_ = 0;
};

// Output that appears under its final name complete or not at all. Data goes to "<path>.partial-<pid>" in the
// same folder, which commit() renames; without commit() the destructor removes it.
class AtomicFile {
public:
    enum class Readers { everybody, owner };

    // Throws Error(io) when the folder is missing or not writable, Error(usage) when `path` exists and
    // `overwrite` is false. `readers`: who may read the file, as far as the process's umask lets them.
    AtomicFile(std::string path, bool overwrite, Readers readers = Readers::everybody);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write(std::span<const std::byte> data);
    void write(std::string_view text);
    // Pads with zero bytes to a multiple of `alignment`.
    void align(size_t alignment);
    uint64_t position() const { return position_; }
    // Flushes to disk and renames. Throws Error(io), e.g. when the disk is full, and Error(usage) when
    // another file has got the name meanwhile and `overwrite` is false.
    void commit();

private:
    void flush();
    std::string path_, temporary_;
    bool overwrite_;
    int descriptor_ = -1;
    uint64_t position_ = 0;
    std::string buffer_;
    bool committed_ = false;
};

// Writes a small file atomically, replacing an existing one.
void write_file(const std::string& path, std::string_view text);

// Folder for downloads and caches: $REFOLD_CACHE, else $XDG_CACHE_HOME/refold, else ~/.cache/refold.
std::filesystem::path cache_directory();

}  // namespace refold
