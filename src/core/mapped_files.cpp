#include "core/mapped_files.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/error.h"

namespace refold {
namespace {

// The maps of this process, for the signal handler, which may only read atomic numbers.
struct Map {
    std::atomic<uintptr_t> begin{0}, end{0};  // 0: free
    std::atomic<bool> damaged{false};
};
std::array<Map, 4096> g_maps;  // maps beyond are not guarded
std::atomic<int> g_damaged{0};

// The rest is for check_mapped_files().
std::mutex g_maps_mutex;
struct File {
    const MappedFile* file = nullptr;
    struct stat status {};  // when it was mapped
};
std::array<File, g_maps.size()> g_files{};
std::string g_lost;  // path of a damaged map that is gone

void on_missing_bytes(int number, siginfo_t* info, void*) {
    const int before = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    for (Map& map : g_maps) {
        const uintptr_t end = map.end.load();
        if (address < map.begin.load() || address >= end) continue;
        // What follows the first missing page is missing as well, or is not worth reading.
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const uintptr_t first = address / page * page;
        if (mmap(reinterpret_cast<void*>(first), end - first, PROT_READ,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            break;
        if (!map.damaged.exchange(true)) ++g_damaged;
        errno = before;
        return;
    }
    signal(number, SIG_DFL);  // another kind of error: the instruction runs again and ends the process
}

void add_map(const MappedFile& file, const struct stat& status) {
    const std::lock_guard lock(g_maps_mutex);
    const auto begin = reinterpret_cast<uintptr_t>(file.bytes().data());
    for (size_t i = 0; i < g_maps.size(); ++i) {
        if (g_files[i].file != nullptr) continue;
        g_files[i] = {&file, status};
        g_maps[i].damaged = false;
        g_maps[i].end = begin + file.bytes().size();
        g_maps[i].begin = begin;
        return;
    }
}

void remove_map(const MappedFile& file) {
    const std::lock_guard lock(g_maps_mutex);
    for (size_t i = 0; i < g_maps.size(); ++i) {
        if (g_files[i].file != &file) continue;
        g_maps[i].begin = g_maps[i].end = 0;
        g_files[i].file = nullptr;
        if (g_maps[i].damaged) g_lost = file.path();
    }
}

[[noreturn]] void fail_damaged(const std::string& path) {
    fail(ErrorCode::io, "file",
         "'{}' was cut shorter while it was read, or its disk fails - restore it and repeat", path);
}

}  // namespace

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
        add_map(*this, status);
    }
    close(descriptor);
}

MappedFile::~MappedFile() {
    if (data_ == nullptr) return;
    remove_map(*this);
    munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto first = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
    const auto last = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
    if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

void check_unchanged(const MappedFile& file) {
    struct stat then {
    }, now{};
    {
        const std::lock_guard lock(g_maps_mutex);
        for (size_t i = 0; i < g_maps.size(); ++i) {
            if (g_files[i].file != &file) continue;
            then = g_files[i].status;
            if (g_maps[i].damaged) fail_damaged(file.path());
        }
    }
    if (stat(file.path().c_str(), &now) != 0) return;                    // removed
    if (now.st_dev != then.st_dev || now.st_ino != then.st_ino) return;  // replaced, or not known
    if (now.st_size < then.st_size) fail_damaged(file.path());
    if (now.st_size != then.st_size || now.st_mtim.tv_sec != then.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != then.st_mtim.tv_nsec)
        fail(ErrorCode::io, "file",
             "'{}' was changed while it was read - repeat with a file that stays as it is", file.path());
}

void check_unchanged(std::span<const std::shared_ptr<const MappedFile>> files) {
    for (const auto& file : files) check_unchanged(*file);
}

void guard_mapped_files() {
    struct sigaction action {};
    action.sa_sigaction = on_missing_bytes;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
}

void check_mapped_files() {
    if (g_damaged == 0) return;
    std::string path;
    {
        const std::lock_guard lock(g_maps_mutex);
        path = std::exchange(g_lost, {});
        for (size_t i = 0; i < g_maps.size() && path.empty(); ++i)
            if (g_files[i].file != nullptr && g_maps[i].damaged) path = g_files[i].file->path();
    }
    if (!path.empty()) fail_damaged(path);
}

}  // namespace refold
