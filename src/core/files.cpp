#include "core/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/mapped_files.h"
#include "core/output_target.h"
#include "core/temporaries.h"

namespace refold {

AtomicFile::AtomicFile(std::string path, bool overwrite, Readers readers)
    : path_(std::move(path)), overwrite_(overwrite) {
    check_output_target(path_, overwrite);
    for (int attempts = 0; descriptor_ < 0; ++attempts) {
        temporary_ = temporary_name(path_);
        descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                           readers == Readers::owner ? 0600 : 0644);
        if (descriptor_ < 0) fail(ErrorCode::io, "output", "cannot write '{}': {}", path_, strerror(errno));
        if (attempts < 100 && !hold_temporary(descriptor_, temporary_)) {
            close(descriptor_);
            descriptor_ = -1;
        }
    }
    register_temporary(temporary_.c_str());
    remove_left_behind(path_);
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
            if (errno == EFAULT)  // the system reads mapped files itself here
                fail(ErrorCode::io, "output", "cannot write '{}': a file that it is made of was cut shorter",
                     path);
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
    if (fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS)
        fail(ErrorCode::io, "output", "cannot write '{}': {}", path_, strerror(errno));
    check_mapped_files();
    rename_to_output(temporary_, path_, overwrite_);
    committed_ = true;
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
