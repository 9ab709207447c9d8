// Linux's control groups, whose limits hold for this process.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace refold {

// Folders of the groups that limit what `controller` ("cpu", "memory") is in charge of: those that the
// process is in, and those that they lie in. Read from proc/self/cgroup and sys/fs/cgroup below `root`.
std::vector<std::filesystem::path> control_groups(const std::string& controller,
                                                  const std::filesystem::path& root);

// The first line of a file that is not blank; empty without one.
std::string first_line(const std::filesystem::path& path);

}  // namespace refold
