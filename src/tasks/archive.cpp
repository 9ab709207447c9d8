#include "tasks/archive.h"

#include <archive.h>
#include <archive_entry.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "core/error.h"
#include "core/files.h"
#include "core/sha256.h"

namespace refold {
namespace {

constexpr size_t kMost = size_t{1} << 30;

struct CloseArchive {
    void operator()(archive* opened) const { archive_read_free(opened); }
};
using Archive = std::unique_ptr<archive, CloseArchive>;

std::string member_of(const std::string& path) {
    const size_t mark = path.find('!');
    return mark == std::string::npos ? "" : path.substr(mark + 1);
}

bool is_compressed(const std::string& path) {
    const std::string extension = std::filesystem::path(path).extension();
    return extension == ".bz2" || extension == ".gz" || extension == ".xz";
}

[[noreturn]] void fail_damaged(const std::string& path, archive* opened) {
    const char* const reason = archive_error_string(opened);
    fail(ErrorCode::input, "data", "'{}' cannot be unpacked: {}", path,
         reason == nullptr ? "unknown" : reason);
}

// An open archive at the beginning of the member; null when there is none.
Archive open_archive(const std::string& path) {
    const std::string file = file_of(path), member = member_of(path);
    Archive opened(archive_read_new());
    archive_read_support_filter_bzip2(opened.get());
    archive_read_support_filter_gzip(opened.get());
    archive_read_support_filter_xz(opened.get());
    if (member.empty()) {
        archive_read_support_format_raw(opened.get());
    } else {
        archive_read_support_format_zip(opened.get());
    }
    constexpr size_t kBlock = 1 << 16;
    if (archive_read_open_filename(opened.get(), file.c_str(), kBlock) != ARCHIVE_OK)
        fail_damaged(path, opened.get());
    archive_entry* entry = nullptr;
    for (;;) {
        const int result = archive_read_next_header(opened.get(), &entry);
        if (result == ARCHIVE_EOF) return nullptr;
        if (result != ARCHIVE_OK && result != ARCHIVE_WARN) fail_damaged(path, opened.get());
        const char* const name = archive_entry_pathname(entry);
        if (member.empty() || (name != nullptr && name == member)) return opened;
    }
}

}  // namespace

std::string file_of(const std::string& path) { return path.substr(0, path.find('!')); }

const std::string& DataHashes::of(const std::string& file) {
    auto found = known_.find(file);
    if (found == known_.end()) {
        found = known_.emplace(file, sha256_hex(MappedFile(file).bytes())).first;
        ++hashed_;
    }
    return found->second;
}

bool has_data_file(const std::string& path) {
    std::error_code missing;
    if (!std::filesystem::is_regular_file(file_of(path), missing)) return false;
    return member_of(path).empty() || open_archive(path) != nullptr;
}

std::string read_data_file(const std::string& path) {
    const std::string file = file_of(path);
    std::error_code missing;
    if (!std::filesystem::is_regular_file(file, missing))
        fail(ErrorCode::io, "data", "'{}' is no file that can be read", file);
    std::string text;
    if (member_of(path).empty() && !is_compressed(file)) {
        std::ifstream in(file, std::ios::binary);
        if (std::filesystem::file_size(file, missing) > kMost)
            fail(ErrorCode::input, "data", "'{}' is larger than 1 GiB", file);
        text.assign(std::istreambuf_iterator<char>(in), {});
        if (in.bad() || !in.is_open()) fail(ErrorCode::io, "data", "cannot read '{}'", file);
        return text;
    }
    const Archive opened = open_archive(path);
    if (!opened) fail(ErrorCode::input, "data", "'{}' has no member '{}'", file, member_of(path));
    std::array<char, 1 << 16> piece{};
    for (;;) {
        const la_ssize_t read = archive_read_data(opened.get(), piece.data(), piece.size());
        if (read < 0) fail_damaged(path, opened.get());
        if (read == 0) return text;
        text.append(piece.data(), static_cast<size_t>(read));
        if (text.size() > kMost) fail(ErrorCode::input, "data", "'{}' unpacks to more than 1 GiB", path);
    }
}

}  // namespace refold
