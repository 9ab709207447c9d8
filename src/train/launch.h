// Which of several processes this one is, where no libtorch is needed to know.
#pragma once

#include <cstdlib>
#include <string_view>

namespace refold {

// The process of rank 0, or the only one: by RANK and WORLD_SIZE, which torchrun and others set. What is wrong with
// these is said when the processes meet (train/torch/processes.h).
inline bool first_process() {
    const char *rank = std::getenv("RANK"), *size = std::getenv("WORLD_SIZE");
    if (rank == nullptr || size == nullptr || std::string_view(size) == "1") return true;
    return std::string_view(rank) == "0";
}

}  // namespace refold
