#include "core/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "core/control_groups.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// A group's number of bytes; `otherwise` where there is none ("max").
uint64_t bytes_of(const fs::path& file, uint64_t otherwise) {
    uint64_t bytes = 0;
    return std::istringstream(first_line(file)) >> bytes ? bytes : otherwise;
}

}  // namespace

Memory memory_of(const fs::path& root) {
    Memory out;
    std::ifstream info(root / "proc/meminfo");
    for (std::string line; std::getline(info, line);) {
        std::string name;
        uint64_t kib = 0;
        if (!(std::istringstream(line) >> name >> kib)) continue;
        if (name == "MemAvailable:") out.available = kib * 1024;
        if (name == "MemTotal:") out.limit = kib * 1024;
    }
    for (const fs::path& group : control_groups("memory", root)) {
        constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
        const uint64_t limit =
            bytes_of(group / "memory.max", bytes_of(group / "memory.limit_in_bytes", kNone));
        if (limit >= out.limit) continue;
        const uint64_t used =
            bytes_of(group / "memory.current", bytes_of(group / "memory.usage_in_bytes", 0));
        out.limit = limit;
        out.available = std::min(out.available, limit - std::min(used, limit));
    }
    return out;
}

}  // namespace refold
