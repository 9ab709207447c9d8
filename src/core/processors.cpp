#include "core/processors.h"

#include <sched.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "core/control_groups.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// The quota of one control group: "MAX PERIOD" in version 2, two files in version 1; neither: no limit.
std::optional<double> quota_of(const fs::path& group) {
    std::string max, period;
    std::istringstream line(first_line(group / "cpu.max"));
    if (!(line >> max >> period)) {
        max = first_line(group / "cpu.cfs_quota_us");
        period = first_line(group / "cpu.cfs_period_us");
    }
    char *end = nullptr, *period_end = nullptr;
    const double microseconds = std::strtod(max.c_str(), &end), of = std::strtod(period.c_str(), &period_end);
    if (end == max.c_str() || period_end == period.c_str() || microseconds <= 0 || of <= 0)
        return std::nullopt;
    return microseconds / of;
}

std::vector<int> allowed_processors() {
    std::vector<int> out;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; ++i)
            if (CPU_ISSET(i, &set)) out.push_back(i);
    }
    // More processors than the set has room for.
    if (out.empty()) {
        for (int i = 0; i < static_cast<int>(std::thread::hardware_concurrency()); ++i) out.push_back(i);
    }
    return out;
}

}  // namespace

int Processors::usable() const {
    const int limited = quota ? static_cast<int>(std::min<double>(*quota, cores)) : cores;
    return std::max(1, limited);
}

Processors processors_of(const std::vector<int>& allowed, const fs::path& root) {
    Processors out;
    out.allowed = std::max(1, static_cast<int>(allowed.size()));
    std::set<std::string> cores;
    for (const int i : allowed) {
        const std::string siblings = first_line(
            root / "sys/devices/system/cpu" / ("cpu" + std::to_string(i)) / "topology/thread_siblings_list");
        cores.insert(siblings.empty() ? "cpu" + std::to_string(i) : siblings);
    }
    out.cores = std::max(1, static_cast<int>(cores.size()));
    for (const fs::path& group : control_groups("cpu", root))
        if (const auto found = quota_of(group)) out.quota = std::min(out.quota.value_or(*found), *found);
    return out;
}

Processors processors() {
    static const Processors found = processors_of(allowed_processors(), "/");
    return found;
}

}  // namespace refold
