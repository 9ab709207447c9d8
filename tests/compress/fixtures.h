// Which fixtures a method can work on.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "model/load.h"

namespace refold {

// Those whose layers all have weights of their own. Models that share by birth are refused by methods that
// need that, or have nothing more to give.
inline std::vector<std::string> unshared_fixtures() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(REFOLD_FIXTURES) + "/hf")) {
        const std::string name = entry.path().filename();
        if (name != "albert" && name != "albert_hub" && name != "ouro" && name != "gemma3n")
            names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

// ... and are all of one kind.
inline std::vector<std::string> fixtures_of_equal_layers() {
    std::vector<std::string> names = unshared_fixtures();
    std::erase(names, "qwen3_moe");
    return names;
}

// Some layers have experts in place of an FFN, whose channels methods share and leave out.
inline bool has_experts(const Model& model) { return model.config.n_expert > 0; }

}  // namespace refold
