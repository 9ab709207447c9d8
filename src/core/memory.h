// How much memory this process can still use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace refold {

struct Memory {
    uint64_t available = 0;  // bytes that can be used without swapping; 0: not known
    uint64_t limit = 0;      // of the machine, or of the smallest control group; 0: not known
};

// Read from files of Linux below `root`: proc/meminfo, and as processors_of(). What is available is at most
// what the limit of this process's address space leaves.
Memory memory_of(const std::filesystem::path& root = "/");

}  // namespace refold
