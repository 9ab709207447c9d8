// Files that come with refold: recipes and the papers' tables.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace refold {

// The path of a file or folder that a user names. A relative one that is not there is looked for below
// `prefixes`, where an installation has such files: `recipes/direct_share_30.yaml` works in every folder.
// Found nowhere, it stays as it is.
std::string data_file(const std::string& path, std::span<const std::filesystem::path> prefixes);
// The same, with installation_prefixes().
std::string data_file(const std::string& path);

}  // namespace refold
