#include "core/output_target.h"

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

void rename_to_output(const std::string& temporary, const std::string& path) {
    check_output_target(path, true);
    if (rename(temporary.c_str(), path.c_str()) != 0)
        fail(ErrorCode::io, "output", "cannot rename to '{}': {}", path, strerror(errno));
}

}  // namespace refold
