#include "core/output_target.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

const char* special_kind(fs::file_type type) {
    switch (type) {
        case fs::file_type::block:
        case fs::file_type::character: return "a device";
        case fs::file_type::fifo: return "a FIFO";
        case fs::file_type::socket: return "a socket";
        default: return nullptr;
    }
}

}  // namespace

void check_output_target(const std::string& path, bool overwrite) {
    std::error_code unknown;  // the call that writes reports a bad path
    const fs::file_status own = fs::symlink_status(path, unknown);
    if (!fs::exists(own)) return;
    const bool link = fs::is_symlink(own);
    const fs::file_status target = link ? fs::status(path, unknown) : own;
    if (const char* kind = special_kind(target.type()); kind != nullptr)
        fail(ErrorCode::usage, "output",
             "cannot write '{}': got {}{}, expected a regular file or a name that is free - choose another "
             "name",
             path, link ? "a link to " : "", kind);
    if (fs::is_directory(target)) fail(ErrorCode::io, "output", "cannot write '{}': is a directory", path);
    if (overwrite) return;
    if (link && !fs::exists(target))
        fail(ErrorCode::usage, "output",
             "'{}' is a link to '{}', which does not exist - choose another name, or pass --overwrite to "
             "replace the link",
             path, fs::read_symlink(path, unknown).string());
    fail(ErrorCode::usage, "output", "'{}' exists - choose another name or pass --overwrite", path);
}

// Returns 0, or the number of the error. A file system may lack exclusive renames, and hard links as well;
// then another file can still appear between the check and the rename.
static int rename_if_free(const char* from, const char* to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno == EEXIST) return EEXIST;
    if (linkat(AT_FDCWD, from, AT_FDCWD, to, 0) == 0) {
        unlink(from);
        return 0;
    }
    std::error_code unknown;
    if (errno == EEXIST || fs::exists(fs::symlink_status(to, unknown))) return EEXIST;
    return rename(from, to) == 0 ? 0 : errno;
}

void rename_to_output(const std::string& temporary, const std::string& path, bool overwrite) {
    check_output_target(path, true);
    int error = 0;
    if (!overwrite)
        error = rename_if_free(temporary.c_str(), path.c_str());
    else if (rename(temporary.c_str(), path.c_str()) != 0)
        error = errno;
    if (error == EEXIST && !overwrite)
        fail(ErrorCode::usage, "output",
             "'{}' appeared while it was being written, and was kept - choose another name or pass "
             "--overwrite",
             path);
    if (error != 0) fail(ErrorCode::io, "output", "cannot rename to '{}': {}", path, strerror(error));
}

}  // namespace refold
