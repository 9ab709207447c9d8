#include "core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"

namespace refold {

MappedFile::MappedFile(const std::string& path) : path_(path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(ErrorCode::io, "file", "cannot open '{}': {}", path, strerror(errno));
    struct stat status {};
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(descriptor);
        fail(ErrorCode::io, "file", "cannot read '{}': {}", path,
             S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file");
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) {
        void* map = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
        if (map == MAP_FAILED) {
            const int reason = errno;
            close(descriptor);
            fail(ErrorCode::io, "file", "cannot map '{}': {}", path, strerror(reason));
        }
        data_ = static_cast<const std::byte*>(map);
    }
    close(descriptor);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
    const auto last = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

AtomicFile::AtomicFile(std::string path, bool overwrite) : path_(std::move(path)) {
    std::error_code ignored;  // open() below reports a bad path
    if (!overwrite && std::filesystem::exists(path_, ignored)) {
        fail(ErrorCode::usage, "output", "'{}' exists - choose another name or pass --overwrite", path_);
    }
    if (std::filesystem::is_directory(path_, ignored))
        fail(ErrorCode::io, "output", "cannot write '{}': is a directory", path_);
    temporary_ = fmt::format("{}.partial-{}", path_, getpid());
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail(ErrorCode::io, "output", "cannot write '{}': {}", path_, strerror(errno));
    register_temporary(temporary_.c_str());
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!committed_) unlink(temporary_.c_str());
    unregister_temporary(temporary_.c_str());
}

static void write_all(int descriptor, const char* data, size_t size, const std::string& path) {
    // Larger writes make Linux put large folios into the page cache, which is up to 3 times slower.
    constexpr size_t kMost = 256 << 10;
    while (size > 0) {
        const ssize_t written = ::write(descriptor, data, std::min(size, kMost));
        if (written < 0) {
            if (errno == EINTR) {
                check_interrupt();
                continue;
            }
            fail(ErrorCode::io, "output", "cannot write '{}': {}", path, strerror(errno));
        }
        data += written;
        size -= static_cast<size_t>(written);
    }
}

void AtomicFile::write(std::span<const std::byte> data) {
    check_interrupt();
    constexpr size_t kBuffer = 1 << 20;
    position_ += data.size();
    if (buffer_.size() + data.size() < kBuffer) {
        buffer_.append(reinterpret_cast<const char*>(data.data()), data.size());
        return;
    }
    flush();
    write_all(descriptor_, reinterpret_cast<const char*>(data.data()), data.size(), path_);
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void AtomicFile::align(size_t alignment) {
    const std::string zeros((alignment - position_ % alignment) % alignment, '\0');
    write(zeros);
}

void AtomicFile::flush() {
    write_all(descriptor_, buffer_.data(), buffer_.size(), path_);
    buffer_.clear();
}

void AtomicFile::commit() {
    flush();
    if (fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) {
        fail(ErrorCode::io, "output", "cannot write '{}': {}", path_, strerror(errno));
    }
    if (const int descriptor = std::exchange(descriptor_, -1); close(descriptor) != 0) {
        fail(ErrorCode::io, "output", "cannot write '{}': {}", path_, strerror(errno));
    }
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
        fail(ErrorCode::io, "output", "cannot rename to '{}': {}", path_, strerror(errno));
    }
    committed_ = true;
}

AtomicFolder::AtomicFolder(std::string final_path, bool overwrite) : final_path_(std::move(final_path)) {
    while (final_path_.size() > 1 && final_path_.back() == '/') final_path_.pop_back();
    std::error_code error;
    if (std::filesystem::exists(final_path_, error)) {
        if (!std::filesystem::is_directory(final_path_, error))
            fail(ErrorCode::usage, "output", "cannot write '{}': it is a file, not a folder", final_path_);
        if (!overwrite && !std::filesystem::is_empty(final_path_, error))
            fail(ErrorCode::usage, "output", "'{}' exists; give --overwrite to replace it", final_path_);
    }
    temporary_ = fmt::format("{}.partial-{}", final_path_, getpid());
    if (!std::filesystem::create_directory(temporary_, error) && error)
        fail(ErrorCode::io, "output", "cannot make folder '{}': {}", temporary_, error.message());
}

AtomicFolder::~AtomicFolder() {
    std::error_code ignored;
    if (!committed_) std::filesystem::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
    std::error_code error;
    const std::string old = temporary_ + ".old";
    const bool replaces = std::filesystem::exists(final_path_, error);
    if (replaces) std::filesystem::rename(final_path_, old, error);
    if (!error) std::filesystem::rename(temporary_, final_path_, error);
    if (error) {
        std::error_code ignored;
        if (replaces && !std::filesystem::exists(final_path_, ignored))
            std::filesystem::rename(old, final_path_, ignored);
        fail(ErrorCode::io, "output", "cannot rename to '{}': {}", final_path_, error.message());
    }
    committed_ = true;
    if (replaces) std::filesystem::remove_all(old, error);
}

void write_file(const std::string& path, std::string_view text) {
    AtomicFile file(path, true);
    file.write(text);
    file.commit();
}

std::filesystem::path cache_directory() {
    if (const char* own = getenv("REFOLD_CACHE"); own != nullptr && *own != '\0') return own;
    if (const char* xdg = getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0')
        return std::filesystem::path(xdg) / "refold";
    const char* home = getenv("HOME");
    return std::filesystem::path(home != nullptr ? home : "/tmp") / ".cache" / "refold";
}

}  // namespace refold
