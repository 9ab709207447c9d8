// The table of objectives. A new objective adds an entry here and one in torch/objectives.cpp.
#include "train/objective.h"

#include "core/error.h"
#include "core/text.h"

namespace refold {

static constexpr ObjectiveInfo kObjectives[] = {
    {"uptrain", "cross entropy of the next token",
     "Relaxed Recursive Transformers, section 3.1 and appendix G; UniAttn, section 3.2"},
    {"distill", "cross entropy and a divergence from the original model's distribution",
     "Relaxed Recursive Transformers, section 3.6 and appendix L; Ko et al. 2024, section 2", true},
    {"early_exit", "cross entropy of the final output and of outputs after earlier layers",
     "Relaxed Recursive Transformers, section 3.7 and appendix M"},
    {"postshare", "cross entropy and the distance between heads that are to be shared",
     "Head-wise Shareable Attention for Large Language Models, section 4.3, equations 4 and 5"},
    {"layerwise", "the original's residual stream after every layer, layer by layer",
     "refold; see compress/training/layerwise.h"},
};

std::span<const ObjectiveInfo> objectives() { return kObjectives; }

const ObjectiveInfo& find_objective(const std::string& name) {
    std::vector<std::string> names;
    for (const ObjectiveInfo& info : kObjectives) {
        if (name == info.name) return info;
        names.emplace_back(info.name);
    }
    fail(ErrorCode::usage, "train", "unknown objective '{}' - {}", name, suggestion(name, names));
}

}  // namespace refold
