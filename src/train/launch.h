// The rank of this process among several, found without libtorch.
#pragma once

#include <cstdlib>
#include <string_view>

#include "core/group.h"

namespace refold {

// Whether WORLD_SIZE, which torchrun and others set, says that there are several. Malformed variables are
// reported later, when the processes connect (train/torch/processes.h).
inline bool several_processes() {
    const char* size = std::getenv("WORLD_SIZE");
    return size != nullptr && *size != '\0' && std::string_view(size) != "1";
}

// The process of rank 0, or the only one.
inline bool first_process() {
    const char* rank = std::getenv("RANK");
    return !several_processes() || rank == nullptr || std::string_view(rank) == "0";
}

// Its number on its machine, as its GPU has: 0 of one process.
inline int local_rank() {
    const char* local = std::getenv("LOCAL_RANK");
    if (local == nullptr || *local == '\0') local = std::getenv("RANK");
    return several_processes() && local != nullptr ? std::atoi(local) : 0;
}

// Connects to the other processes, if any, and sets group(); only the first one shows progress then. Throws
// as Processes does, and Error(unsupported) in a build without libtorch.
void join_group();
// The symbol of the group in the torch engine's library.
inline constexpr const char* kGroupSymbol = "refold_torch_group";
using GroupFunction = Group*();

}  // namespace refold
