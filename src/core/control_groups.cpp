#include "core/control_groups.h"

#include <fstream>

namespace refold {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
    std::string line;
    std::getline(std::ifstream(path) >> std::ws, line);
    return line;
}

std::vector<fs::path> control_groups(const std::string& controller, const fs::path& root) {
    std::vector<fs::path> out;
    const auto add = [&](const fs::path& mount, const std::string& group) {
        for (fs::path path = fs::path(group).relative_path();; path = path.parent_path()) {
            out.push_back(mount / path);
            if (path.empty()) return;
        }
    };
    // Lines of "ID:CONTROLLERS:PATH"; version 2 has no controllers.
    std::ifstream groups(root / "proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                          path = line.substr(second + 1);
        if (controllers == ",,") add(root / "sys/fs/cgroup", path);
        if (controllers.find("," + controller + ",") != std::string::npos)
            add(root / "sys/fs/cgroup" / controller, path);
    }
    return out;
}

}  // namespace refold
