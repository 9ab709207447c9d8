#include "core/data_files.h"

#include "core/libraries.h"

namespace refold {

namespace fs = std::filesystem;

std::string data_file(const std::string& path, std::span<const fs::path> prefixes) {
    std::error_code none;
    if (path.empty() || fs::path(path).is_absolute() || fs::exists(path, none)) return path;
    for (const fs::path& prefix : prefixes)
        if (const fs::path file = prefix / REFOLD_DATA / path; fs::exists(file, none)) return file.string();
    return path;
}

std::string data_file(const std::string& path) { return data_file(path, installation_prefixes()); }

}  // namespace refold
