#include "core/file_hash.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/progress.h"
#include "core/sha256.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

bool is_digest(const std::string& text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Changes whenever the file does; empty when it cannot be examined.
std::string identity(const std::string& path) {
    struct stat status {};
    std::error_code error;
    const std::string canonical = fs::canonical(path, error).string();
    if (error || stat(canonical.c_str(), &status) != 0) return "";
    return fmt::format("{}\n{} {} {}.{} {}.{}", canonical, status.st_size, status.st_ino,
                       status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
                       status.st_ctim.tv_nsec);
}

}  // namespace

std::string file_sha256(const MappedFile& file) {
    constexpr size_t kPiece = size_t{16} << 20;
    Sha256 hash;
    Progress progress("SHA-256 of " + file.path(), file.bytes().size(), "bytes");
    for (auto rest = file.bytes(); !rest.empty();) {
        const auto piece = rest.first(std::min(kPiece, rest.size()));
        hash.update(piece);
        file.release(piece);
        rest = rest.subspan(piece.size());
        progress.advance(piece.size());
    }
    progress.finish();
    return hash.hex();
}

std::string remembered_sha256(const std::string& path) {
    constexpr size_t kWorthRemembering = size_t{1} << 20;
    const std::string before = identity(path);
    const MappedFile file(path);
    if (before.empty() || file.bytes().size() < kWorthRemembering) return file_sha256(file);
    const fs::path entry =
        cache_directory() / "sha256" / sha256_hex(std::as_bytes(std::span(before.data(), before.size())));
    std::string known;
    if (std::ifstream(entry) >> known && is_digest(known)) return known;
    std::string digest = file_sha256(file);
    if (identity(path) != before) return digest;
    try {
        std::error_code none;
        fs::create_directories(entry.parent_path(), none);
        write_file(entry.string(), digest + "\n");
    } catch (const Error& error) {
        if (error.code() != ErrorCode::io) throw;
    }
    return digest;
}

}  // namespace refold
