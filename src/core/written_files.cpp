#include "core/written_files.h"

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/file_hash.h"
#include "core/files.h"
#include "core/sha256.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashDigits = 64;
constexpr const char* kHeading =
    "# The files that refold wrote into this folder, by SHA-256. Its --overwrite replaces them as long as "
    "they "
    "are unchanged.\n";

bool is_regular(const fs::path& path) {
    std::error_code none;
    return fs::is_regular_file(fs::symlink_status(path, none));
}

// With progress for what takes a while.
std::string hash_of(const fs::path& path) {
    constexpr size_t kQuick = size_t{64} << 20;
    const MappedFile file(path.string());
    return file.bytes().size() < kQuick ? sha256_hex(file.bytes()) : file_sha256(file);
}

}  // namespace

WrittenFiles::WrittenFiles(const std::string& folder) : folder_(folder) {
    const fs::path list = fs::path(folder) / kWrittenFiles;
    if (!is_regular(list)) return;
    std::ifstream in(list);
    for (std::string line; std::getline(in, line);) {
        // "<hash>  <name>", as sha256sum writes it.
        if (line.size() > kHashDigits + 2 && line.compare(kHashDigits, 2, "  ") == 0)
            hashes_[line.substr(kHashDigits + 2)] = line.substr(0, kHashDigits);
    }
}

bool WrittenFiles::contains(const std::string& name) const {
    const auto found = hashes_.find(name);
    const fs::path path = fs::path(folder_) / name;
    return found != hashes_.end() && is_regular(path) && hash_of(path) == found->second;
}

void write_list_of_files(const std::string& folder, const std::vector<std::string>& names) {
    std::string text = kHeading;
    for (const std::string& name : names)
        text += fmt::format("{}  {}\n", hash_of(fs::path(folder) / name), name);
    write_file((fs::path(folder) / kWrittenFiles).string(), text);
}

}  // namespace refold
