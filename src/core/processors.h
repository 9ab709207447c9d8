// How many processors this process can really use.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace refold {

struct Processors {
    int allowed = 1;              // that the process may run on (affinity)
    int cores = 1;                // physical ones of these: two hyper-threads share one's units
    std::optional<double> quota;  // processors' worth of time, by the smallest of its control groups (Linux)

    // As many threads as can run at the same time without sharing a core or being stopped by the quota.
    int usable() const;
};

// Of this process.
Processors processors();
// Read from files of Linux below `root`: /proc/self/cgroup, /sys/fs/cgroup and /sys/devices/system/cpu; what
// is missing there limits nothing. `allowed`: numbers of processors.
Processors processors_of(const std::vector<int>& allowed, const std::filesystem::path& root);

}  // namespace refold
