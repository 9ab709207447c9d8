#include "core/output_folder.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "core/mapped_files.h"
#include "core/temporaries.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

bool is_folder(const std::string& path) {  // and no link
    std::error_code none;
    return fs::is_directory(fs::symlink_status(path, none));
}

bool is_there(const std::string& path) {
    std::error_code none;
    return fs::exists(fs::symlink_status(path, none));
}

// The folder itself, for a link to one and for names like "." that cannot be renamed.
std::string real_folder(std::string folder) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    std::error_code none;
    const fs::file_status own = fs::symlink_status(folder, none), target = fs::status(folder, none);
    if (fs::is_symlink(own) && !fs::exists(target))
        fail(ErrorCode::usage, "output",
             "'{}' is a link to '{}', which does not exist - make that folder, or choose another name",
             folder, fs::read_symlink(folder, none).string());
    if (!fs::exists(target)) return folder;
    if (fs::is_regular_file(target))
        fail(ErrorCode::usage, "output", "cannot write '{}': it is a file, not a folder", folder);
    if (!fs::is_directory(target))
        fail(ErrorCode::usage, "output", "cannot write '{}': it is not a folder", folder);
    const fs::path name = fs::path(folder).filename();
    return fs::is_symlink(own) || name.empty() || name == "." || name == ".." ? fs::canonical(folder).string()
                                                                              : folder;
}

// Fails early where commit() would.
void check_replaceable(const std::string& folder, bool overwrite) {
    if (!overwrite && !fs::is_empty(folder))
        fail(ErrorCode::usage, "output", "'{}' exists; give --overwrite to replace it", folder);
    if (access(folder.c_str(), R_OK | W_OK | X_OK) != 0)
        fail(ErrorCode::io, "output", "cannot write '{}': {}", folder, strerror(errno));
    const fs::path whole = fs::canonical(folder);
    struct stat own {
    }, around{};
    if (stat(whole.c_str(), &own) == 0 && stat(whole.parent_path().c_str(), &around) == 0 &&
        (own.st_dev != around.st_dev || own.st_ino == around.st_ino))
        fail(ErrorCode::usage, "output",
             "cannot write '{}': it is the root of a file system, which cannot be replaced in one step - "
             "choose a folder in it",
             folder);
    std::error_code none;
    const fs::path current = fs::current_path(none);
    if (std::mismatch(whole.begin(), whole.end(), current.begin(), current.end()).first == whole.end())
        fail(ErrorCode::usage, "output",
             "cannot write '{}': it is the current folder, or around it, and is exchanged for a new one - "
             "run refold in another folder",
             folder);
}

std::vector<std::string> files_in(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
        if (fs::is_regular_file(entry.symlink_status()))
            names.push_back(entry.path().lexically_relative(folder).string());
    std::ranges::sort(names);
    return names;
}

bool have_same_bytes(const std::string& a, const std::string& b) {
    std::error_code none;
    if (!fs::is_regular_file(fs::symlink_status(a, none)) ||
        !fs::is_regular_file(fs::symlink_status(b, none)) || fs::file_size(a, none) != fs::file_size(b, none))
        return false;
    const MappedFile first(a), second(b);
    return std::ranges::equal(first.bytes(), second.bytes());
}

// Access control lists, for example; what cannot be had is left out.
void copy_attributes(const std::string& from, const std::string& to) {
    std::string names(64 << 10, '\0'), value(64 << 10, '\0');
    const ssize_t size = llistxattr(from.c_str(), names.data(), names.size());
    for (ssize_t at = 0; at < size;) {
        const char* name = names.data() + at;
        const ssize_t length = lgetxattr(from.c_str(), name, value.data(), value.size());
        if (length >= 0) lsetxattr(to.c_str(), name, value.data(), static_cast<size_t>(length), 0);
        at += static_cast<ssize_t>(strlen(name)) + 1;
    }
}

void make_alike(const std::string& from, const std::string& to) {
    struct stat status {};
    if (lstat(from.c_str(), &status) != 0) return;
    bool alike = chown(to.c_str(), status.st_uid, status.st_gid) == 0 || status.st_uid == geteuid();
    if (alike) copy_attributes(from, to);
    alike = alike && chmod(to.c_str(), status.st_mode & 07777) == 0;
    if (!alike)
        fail(ErrorCode::io, "output",
             "'{}' cannot be kept in the new folder with its owner and mode: {} - choose another folder",
             from, strerror(errno));
}

void copy_times(const std::string& from, const std::string& to) {
    struct stat status {};
    if (lstat(from.c_str(), &status) != 0) return;
    const timespec times[] = {status.st_atim, status.st_mtim};
    utimensat(AT_FDCWD, to.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

constexpr const char* kMovedAway = ".old";

// What has the name of a file in `folder` and is the same file, or was written by refold.
void remove_replaced(const std::string& old, const std::string& folder) {
    const WrittenFiles written(old);
    remove_files(old, [&](const fs::path& name) {
        std::error_code none;
        return name == kWrittenFiles || written.contains(name.string()) ||
               fs::equivalent(fs::path(old) / name, fs::path(folder) / name, none);
    });
}

// Where folders cannot be exchanged, a run may have been killed between its two renames, or after them.
void bring_back(const std::string& folder) {
    const fs::path path(folder);
    const std::string begin = temporary_beginning(path.filename().string());
    std::error_code none;
    std::vector<fs::path> moved;
    for (const auto& entry :
         fs::directory_iterator(path.has_parent_path() ? path.parent_path() : ".", none)) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(begin) && name.ends_with(kMovedAway) && is_folder(entry.path().string()))
            moved.push_back(entry.path());
    }
    for (const fs::path& old : moved)
        is_there(folder) ? remove_replaced(old.string(), folder) : fs::rename(old, path);
}

void link_into(const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(to).parent_path());
    unlink(to.c_str());
    if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) != 0)
        fail(ErrorCode::io, "output",
             "'{}' cannot be kept in the new folder: a hard link to it failed: {} - choose another folder",
             from, strerror(errno));
}

}  // namespace

// What is in the folder that exists already. Names are relative to it.
struct OutputFolder::Old {
    Old(const std::string& folder, const std::string& fresh, const FolderRules& rules)
        : folder_(folder), fresh_(fresh), rules_(rules), written_(folder) {
        if (is_folder(folder)) look_at("");
    }

    std::vector<std::string> folders, kept;  // folders: innermost first
    std::set<std::string> dropped;           // files, and folders that had nothing else
    std::vector<std::string> forbidden;

    void fail_if_forbidden() const {
        if (forbidden.empty()) return;
        constexpr size_t kMost = 10;
        std::string names = fmt::format(
            "'{}'",
            fmt::join(forbidden.begin(), forbidden.begin() + std::min(kMost, forbidden.size()), "', '"));
        if (forbidden.size() > kMost) names += fmt::format(" and {} more", forbidden.size() - kMost);
        fail(ErrorCode::usage, "output",
             "'{}' has files that this output would replace, or that would be taken for a part of it, and "
             "that "
             "refold did not write as they are now: {} - choose another folder, or move these away",
             folder_, names);
    }

private:
    // Returns whether something in the folder stays.
    bool look_at(const std::string& name) {
        bool stays = false, drops = false;
        for (const auto& entry : fs::directory_iterator(fs::path(folder_) / name)) {
            const std::string own = (fs::path(name) / entry.path().filename()).string();
            const bool kept_here =
                fs::is_directory(entry.symlink_status()) ? look_at_folder(own) : look_at_file(own);
            (kept_here ? stays : drops) = true;
        }
        return stays || !drops;
    }
    bool look_at_folder(const std::string& name) {
        const std::string fresh = new_path(name);
        if (is_there(fresh) && !is_folder(fresh)) forbidden.push_back(name);
        const bool stays = look_at(name);
        if (stays || is_folder(fresh))
            folders.push_back(name);
        else
            dropped.insert(name);
        return stays;
    }
    bool look_at_file(const std::string& name) {
        const std::string fresh = new_path(name);
        const bool replaced = is_there(fresh);
        const OthersFile rule = name == kWrittenFiles     ? rule_for_list()
                                : written_.contains(name) ? OthersFile::removed
                                : rules_.others           ? rules_.others(name)
                                                          : OthersFile::stays;
        const bool stays = (rule == OthersFile::stays || rule == OthersFile::replaced) &&
                           (!replaced || have_same_bytes(fresh, old_path(name)));
        if (rule == OthersFile::refused || (rule == OthersFile::stays && !stays)) forbidden.push_back(name);
        if (stays)
            kept.push_back(name);
        else
            dropped.insert(name);
        return stays;
    }
    OthersFile rule_for_list() const {
        return fs::is_regular_file(fs::symlink_status(old_path(kWrittenFiles))) ? OthersFile::removed
                                                                                : OthersFile::refused;
    }
    std::string old_path(const std::string& name) const { return (fs::path(folder_) / name).string(); }
    std::string new_path(const std::string& name) const { return (fs::path(fresh_) / name).string(); }

    const std::string folder_, fresh_;
    const FolderRules& rules_;
    const WrittenFiles written_;
};

OutputFolder::OutputFolder(const std::string& folder, FolderRules rules)
    : folder_(real_folder(folder)), rules_(std::move(rules)) {
    try {
        bring_back(folder_);
        if (is_folder(folder_)) check_replaceable(folder_, rules_.overwrite);
        for (int attempts = 0; descriptor_ < 0 && attempts < 100; ++attempts) {
            temporary_ = temporary_name(folder_);
            std::error_code error;
            if (!fs::create_directory(temporary_, error))
                fail(ErrorCode::io, "output", "cannot make folder '{}': {}", temporary_, error.message());
            descriptor_ = open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
            if (descriptor_ >= 0 && !hold_temporary(descriptor_, temporary_)) {
                close(descriptor_);
                descriptor_ = -1;
            }
        }
        remove_left_behind(folder_);
        Old(folder_, temporary_, rules_).fail_if_forbidden();
    } catch (const fs::filesystem_error& error) {
        abandon();
        fail(ErrorCode::io, "output", "cannot write '{}': {}", folder_, error.what());
    } catch (...) {
        abandon();
        throw;
    }
}

OutputFolder::~OutputFolder() { abandon(); }

void OutputFolder::abandon() {
    if (!committed_ && !temporary_.empty()) remove_tree(temporary_);
    if (descriptor_ >= 0) close(descriptor_);
}

void OutputFolder::commit() {
    check_mapped_files();
    try {
        std::vector<std::string> written = files_in(temporary_);
        const Old old(folder_, temporary_, rules_);
        old.fail_if_forbidden();
        // Those with the bytes of somebody else's file are that file.
        std::erase_if(written, [&](const std::string& name) {
            return std::ranges::find(old.kept, name) != old.kept.end();
        });
        for (const std::string& name : old.folders) fs::create_directories(fs::path(temporary_) / name);
        for (const std::string& name : old.kept)
            link_into((fs::path(folder_) / name).string(), (fs::path(temporary_) / name).string());
        if (!written.empty()) write_list_of_files(temporary_, written);
        for (const std::string& name : old.folders) {
            make_alike((fs::path(folder_) / name).string(), (fs::path(temporary_) / name).string());
            copy_times((fs::path(folder_) / name).string(), (fs::path(temporary_) / name).string());
        }
        if (is_folder(folder_)) make_alike(folder_, temporary_);
        exchange(old);
    } catch (const fs::filesystem_error& error) {
        fail(ErrorCode::io, "output", "cannot write '{}': {}", folder_, error.what());
    }
}

// Moves what has come into the old folder since it was looked at.
static void move_late_files(const std::string& old, const std::string& fresh,
                            const std::set<std::string>& dropped) {
    std::error_code none;
    for (auto entry = fs::recursive_directory_iterator(old, none);
         !none && entry != fs::recursive_directory_iterator(); entry.increment(none)) {
        const std::string name = entry->path().lexically_relative(old).string(),
                          to = (fs::path(fresh) / name).string();
        if (dropped.contains(name) || is_there(to)) continue;
        std::error_code ignored;
        entry.disable_recursion_pending();
        fs::create_directories(fs::path(to).parent_path(), ignored);
        fs::rename(entry->path(), to, ignored);
    }
}

void OutputFolder::exchange(const Old& old) {
    std::string replaced = temporary_;
    const bool replaces = is_folder(folder_);
    if (!replaces) {
        fs::rename(temporary_, folder_);
    } else if (renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, folder_.c_str(), RENAME_EXCHANGE) != 0) {
        if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
            fail(ErrorCode::io, "output", "cannot rename to '{}': {}", folder_, strerror(errno));
        // A file system that cannot exchange. bring_back() knows the name, and nothing removes it by mistake.
        replaced = temporary_ + kMovedAway;
        fs::rename(folder_, replaced);
        std::error_code error;
        fs::rename(temporary_, folder_, error);
        if (error) {
            fs::rename(replaced, folder_);
            fail(ErrorCode::io, "output", "cannot rename to '{}': {}", folder_, error.message());
        }
    }
    committed_ = true;
    if (!replaces) return;
    move_late_files(replaced, folder_, old.dropped);
    remove_tree(replaced);
}

}  // namespace refold
