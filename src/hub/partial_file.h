// A file that grows over several attempts and gets its final name once it is complete and verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace refold::hub {

class PartialFile {
public:
    // Opens "<path>.incomplete" for appending, or creates it. All functions may throw Error(io).
    explicit PartialFile(std::filesystem::path path);
    ~PartialFile();
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;

    static std::filesystem::path incomplete(const std::filesystem::path& path);

    uint64_t size() const { return size_; }
    void append(std::span<const std::byte> data);
    // Truncates the file.
    void restart();
    // The file's hash in lower-case hexadecimal: SHA-256, or the SHA-1 that names a git blob.
    std::string sha256() const { return hash("SHA256", ""); }
    std::string git_sha1() const;
    // Flushes to disk and renames.
    void commit();
    void remove();

private:
    std::string hash(const char* algorithm, const std::string& prefix) const;
    [[noreturn]] void fail_write(int reason) const;
    std::filesystem::path path_, incomplete_;
    int descriptor_ = -1;
    uint64_t size_ = 0;
};

}  // namespace refold::hub
