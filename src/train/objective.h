// The table of training objectives. Each is one file in train/torch/objectives.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace refold {

// Options of an objective by name, from the recipe step; numbers are text as the user wrote them.
using ObjectiveOptions = std::map<std::string, std::string>;

struct ObjectiveInfo {
    const char* name;
    const char* summary;
    const char* paper;
    bool teacher = false;  // needs the original model
};

std::span<const ObjectiveInfo> objectives();
// Throws Error(usage) with the nearest name.
const ObjectiveInfo& find_objective(const std::string& name);

// Rows [first, first + count) of a stored matrix.
struct WeightRows {
    std::string tensor;
    int64_t first = 0, count = 0;
};
// Two heads (KV groups) that `postshare` pulls together: the rows of their query, key and value weights.
struct HeadPair {
    struct Weights {
        std::vector<WeightRows> later, former;
    };
    std::array<Weights, 3> qkv;
};

}  // namespace refold
