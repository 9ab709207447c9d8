#include "core/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/mapped_files.h"

namespace refold {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial-";

// False if another process has the lock, or the file system has none.
bool lock_file(int descriptor) { return flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

// The locked folders of this process.
std::mutex g_folders_mutex;
std::map<std::string, int> g_folders;

void lock_folder(const std::string& folder) {
    const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    lock_file(descriptor);
    const std::lock_guard guard(g_folders_mutex);
    g_folders[folder] = descriptor;
}

void unlock_folder(const std::string& folder) {
    const std::lock_guard guard(g_folders_mutex);
    const auto found = g_folders.find(folder);
    if (found == g_folders.end()) return;
    close(found->second);
    g_folders.erase(found);
}

// Removes what killed processes have left of the output.
void remove_left_behind(const std::string& output, const std::string& own) {
    const fs::path path(output);
    const std::string begin = path.filename().string() + std::string(kPartial);
    std::error_code none;
    const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
    for (auto entry = fs::directory_iterator(folder, none); !none && entry != fs::directory_iterator();
         entry.increment(none)) {
        const std::string name = entry->path().filename().string();
        if (!name.starts_with(begin) || name.size() == begin.size() || name == fs::path(own).filename() ||
            name.find_first_not_of("0123456789", begin.size()) != std::string::npos)
            continue;
        const int left = open(entry->path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        if (left < 0) continue;
        std::error_code ignored;
        if (lock_file(left)) fs::remove_all(entry->path(), ignored);
        close(left);
    }
}

}  // namespace

AtomicFile::AtomicFile(std::string path, bool overwrite, Readers readers) : path_(std::move(path)) {
    std::error_code ignored;  // open() below reports a bad path
    if (!overwrite && std::filesystem::exists(path_, ignored)) {
        fail(ErrorCode::usage, "output", "'{}' exists - choose another name or pass --overwrite", path_);
    }
    if (std::filesystem::is_directory(path_, ignored))
        fail(ErrorCode::io, "output", "cannot write '{}': is a directory", path_);
    temporary_ = fmt::format("{}.partial-{}", path_, getpid());
    const bool own = readers == Readers::owner;
    if (own) unlink(temporary_.c_str());  // whatever somebody else has put there
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (own ? O_EXCL : O_TRUNC),
                       own ? 0600 : 0644);
    if (descriptor_ < 0) fail(ErrorCode::io, "output", "cannot write '{}': {}", path_, strerror(errno));
    register_temporary(temporary_.c_str());
    lock_file(descriptor_);
    remove_left_behind(path_, temporary_);
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
    if (rename(temporary_.c_str(), path_.c_str()) != 0)
        fail(ErrorCode::io, "output", "cannot rename to '{}': {}", path_, strerror(errno));
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
    lock_folder(temporary_);
    remove_left_behind(final_path_, temporary_);
}

AtomicFolder::~AtomicFolder() {
    std::error_code ignored;
    if (!committed_) std::filesystem::remove_all(temporary_, ignored);
    unlock_folder(temporary_);
}

void AtomicFolder::commit() {
    check_mapped_files();
    std::error_code error;
    if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, final_path_.c_str(), RENAME_EXCHANGE) == 0) {
        committed_ = true;
        std::filesystem::remove_all(temporary_, error);  // the old one
        return;
    }
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
