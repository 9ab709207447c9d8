#include "core/memory.h"

#include <sys/resource.h>
#include <unistd.h>

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

// What is left of this process's address space (ulimit -v).
uint64_t address_space_left(const fs::path& root) {
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return std::numeric_limits<uint64_t>::max();
    uint64_t pages = 0;
    std::ifstream(root / "proc/self/statm") >> pages;
    const uint64_t used = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    return limit.rlim_cur - std::min<uint64_t>(used, limit.rlim_cur);
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
    out.available = std::min(out.available, address_space_left(root));
    return out;
}

}  // namespace refold
