#include "core/temporaries.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <ranges>
#include <vector>

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDigits = 16;

// The output whose temporary file has this name; the name itself if it is no such one.
fs::path without_ending(const fs::path& name) {
    const std::string text = name.string(), mark = temporary_beginning("");
    const size_t end = mark.size() + kDigits;
    if (text.size() <= end || text.compare(text.size() - end, mark.size(), mark) != 0 ||
        text.find_first_not_of("0123456789abcdef", text.size() - kDigits) != std::string::npos)
        return name;
    return text.substr(0, text.size() - end);
}

bool is_same(int descriptor, const std::string& path, struct stat& opened) {
    struct stat named {};
    return fstat(descriptor, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

void remove_if_abandoned(const std::string& path) {
    const int left = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (left < 0) return;
    struct stat status {};
    if (flock(left, LOCK_EX | LOCK_NB) == 0 && is_same(left, path, status) && status.st_uid == geteuid()) {
        if (S_ISDIR(status.st_mode)) remove_tree(path);
        if (S_ISREG(status.st_mode)) unlink(path.c_str());
    }
    close(left);
}

}  // namespace

std::string temporary_name(const std::string& output) {
    uint64_t number = 0;
    while (getrandom(&number, sizeof number, 0) != sizeof number) {  // a signal came
    }
    return fmt::format("{}{:0{}x}", temporary_beginning(output), number, kDigits);
}

std::string temporary_beginning(const std::string& output) { return output + ".partial-"; }

bool hold_temporary(int descriptor, const std::string& path) {
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    struct stat status {};
    return is_same(descriptor, path, status);
}

void remove_files(const std::string& folder, const std::function<bool(const fs::path& name)>& ours) {
    std::error_code none;
    std::vector<fs::path> folders;
    for (auto entry = fs::recursive_directory_iterator(folder, none);
         !none && entry != fs::recursive_directory_iterator(); entry.increment(none)) {
        std::error_code ignored;
        const fs::file_status status = entry->symlink_status(ignored);
        if (fs::is_directory(status)) folders.push_back(entry->path());
        const fs::path name = without_ending(entry->path().lexically_relative(folder));
        if (fs::is_regular_file(status) && ours(name)) fs::remove(entry->path(), ignored);
    }
    // Inner ones first. A folder that is not empty is not removed.
    for (const fs::path& inner : folders | std::views::reverse) fs::remove(inner, none);
    if (fs::is_directory(fs::symlink_status(folder, none))) fs::remove(folder, none);
}

void remove_left_behind(const std::string& output) {
    const fs::path path(output);
    std::error_code none;
    const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
    for (auto entry = fs::directory_iterator(folder, none); !none && entry != fs::directory_iterator();
         entry.increment(none)) {
        if (entry->path() != without_ending(entry->path()) &&
            without_ending(entry->path()).filename() == path.filename())
            remove_if_abandoned(entry->path().string());
    }
}

void remove_tree(const std::string& folder) {
    std::error_code none;
    const auto open_up = [&](const fs::path& path) {
        fs::permissions(path, fs::perms::owner_all, fs::perm_options::add, none);
    };
    open_up(folder);
    for (auto entry = fs::recursive_directory_iterator(folder, none);
         !none && entry != fs::recursive_directory_iterator(); entry.increment(none)) {
        std::error_code vanished;
        if (fs::is_directory(entry->symlink_status(vanished))) open_up(entry->path());
    }
    fs::remove_all(folder, none);
}

}  // namespace refold
