// What training minimises. An objective is one file in train/torch/objectives; this is the table of them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

namespace refold {

// Options of objectives by name, as the recipe step gives them; numbers are written as a user would.
using ObjectiveOptions = std::map<std::string, std::string>;

struct ObjectiveInfo {
    const char* name;
    const char* summary;
    const char* paper;
    bool teacher = false;  // needs the original model
};

std::span<const ObjectiveInfo> objectives();

}  // namespace refold
