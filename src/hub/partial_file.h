// A file that grows over several tries and gets its name when it is what it should be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace refold::hub {

class PartialFile {
public:
    // Continues "<path>.incomplete" or begins it. Throws Error(io), as the other functions do.
    explicit PartialFile(std::filesystem::path path);
    ~PartialFile();
    PartialFile(const PartialFile&) = delete;
    PartialFile& operator=(const PartialFile&) = delete;

    static std::filesystem::path incomplete(const std::filesystem::path& path);

    uint64_t size() const { return size_; }
    void append(std::span<const std::byte> data);
    // Forgets what there is.
    void restart();
    // The file's hash in lower-case hexadecimal: SHA-256, or SHA-1 as git names a blob.
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
