// Which of several processes this one is, where no libtorch is needed to know.
#pragma once

#include <cstdlib>
#include <string_view>

#include "core/group.h"

namespace refold {

// More than one, by WORLD_SIZE, which torchrun and others set. What is wrong with their variables is said
// when the processes meet (train/torch/processes.h).
inline bool several_processes() {
    const char* size = std::getenv("WORLD_SIZE");
    return size != nullptr && *size != '\0' && std::string_view(size) != "1";
}

// The process of rank 0, or the only one.
inline bool first_process() {
    const char* rank = std::getenv("RANK");
    return !several_processes() || rank == nullptr || std::string_view(rank) == "0";
}

// Where there are several processes, meets them, and sets group(). Throws what Processes throws, and
// Error(unsupported) in a build without libtorch.
void join_group();
// What is exchanged with the torch engine's library.
inline constexpr const char* kGroupSymbol = "refold_torch_group";
using GroupFunction = Group*();

}  // namespace refold
