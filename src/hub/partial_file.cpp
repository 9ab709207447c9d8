#include "hub/partial_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/interrupt.h"

namespace refold::hub {

namespace fs = std::filesystem;

fs::path PartialFile::incomplete(const fs::path& path) { return path.string() + ".incomplete"; }

PartialFile::PartialFile(fs::path path) : path_(std::move(path)), incomplete_(incomplete(path_)) {
    // O_NONBLOCK: a FIFO must not wait for its reader.
    descriptor_ =
        open(incomplete_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat status {};
    if (descriptor_ >= 0 && fstat(descriptor_, &status) == 0 &&
        (!S_ISREG(status.st_mode) || status.st_nlink > 1)) {
        close(descriptor_);
        descriptor_ = -1;
        errno = ELOOP;
    }
    if (descriptor_ < 0 && errno == ELOOP) {
        fail(ErrorCode::io, "hub", "'{}' is no file of its own, but a link or a device - remove it",
             incomplete_.string());
    }
    if (descriptor_ < 0) {
        fail(ErrorCode::io, "hub", "cannot open '{}': {} - set HF_HUB_CACHE to another folder",
             incomplete_.string(), strerror(errno));
    }
    size_ = static_cast<uint64_t>(status.st_size);
}

PartialFile::~PartialFile() { close(descriptor_); }

void PartialFile::fail_write(int reason) const {
    if (reason == ENOSPC || reason == EDQUOT) {
        fail(
            ErrorCode::io, "hub",
            "the disk is full ('{}') - make room and run it again, which continues, or set HF_HUB_CACHE to a "
            "folder on another disk",
            incomplete_.string());
    }
    fail(ErrorCode::io, "hub", "cannot write '{}': {}", incomplete_.string(), strerror(reason));
}

void PartialFile::append(std::span<const std::byte> data) {
    while (!data.empty()) {
        const ssize_t written = write(descriptor_, data.data(), data.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail_write(errno);
        size_ += static_cast<uint64_t>(written);
        data = data.subspan(static_cast<size_t>(written));
    }
}

void PartialFile::restart() {
    if (size_ > 0 && ftruncate(descriptor_, 0) != 0) fail_write(errno);
    size_ = 0;
}

std::string PartialFile::git_sha1() const {
    using std::string_literals::operator""s;
    return hash("SHA1", fmt::format("blob {}", size_) + "\0"s);
}

std::string PartialFile::hash(const char* algorithm, const std::string& prefix) const {
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
    if (!context || EVP_DigestInit_ex(context.get(), EVP_get_digestbyname(algorithm), nullptr) != 1) {
        fail(ErrorCode::internal, "hub", "libcrypto has no {}", algorithm);
    }
    EVP_DigestUpdate(context.get(), prefix.data(), prefix.size());
    std::vector<std::byte> buffer(size_t{1} << 20);
    for (uint64_t at = 0; at < size_;) {
        check_interrupt();
        const ssize_t count = pread(descriptor_, buffer.data(), buffer.size(), static_cast<off_t>(at));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            fail(ErrorCode::io, "hub", "cannot read '{}': {}", incomplete_.string(),
                 count < 0 ? strerror(errno) : "it became shorter");
        }
        EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(count));
        at += static_cast<uint64_t>(count);
    }
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int length = 0;
    EVP_DigestFinal_ex(context.get(), digest.data(), &length);
    return fmt::format("{:02x}", fmt::join(digest.begin(), digest.begin() + length, ""));
}

void PartialFile::commit() {
    if (fsync(descriptor_) != 0) fail_write(errno);
    if (rename(incomplete_.c_str(), path_.c_str()) != 0) fail_write(errno);
}

void PartialFile::remove() {
    std::error_code ignored;
    fs::remove(incomplete_, ignored);
}

}  // namespace refold::hub
