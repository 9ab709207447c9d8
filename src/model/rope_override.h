// Rotary position embeddings other than the model's own: for texts longer than it was trained for.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// Scalings of Rope. `own`: the model's.
enum class RopeScaling { own, none, linear, dynamic, yarn };

struct RopeOverride {
    double base = 0;  // 0: the model's
    RopeScaling scaling = RopeScaling::own;
    double factor = 0;  // linear, dynamic and yarn: at least 1

    bool active() const { return base > 0 || scaling != RopeScaling::own; }
};

// "none", "linear:4", "dynamic:2" or "yarn:8", by which `to` gets a scaling. Throws Error(usage).
void parse_rope_scaling(const std::string& text, RopeOverride& to);
// For reports: "base 500000, yarn:8"; empty when it is not active.
std::string to_text(const RopeOverride& rope);

// The model with this rotation in all layers but those with a window and a rotation of their own (Gemma 3). A
// scaling replaces the model's, Llama 3's frequency factors included; the context that it counts from
// (dynamic, yarn) is the one that the model names, else its context length. Throws Error(usage) for models
// without rotary embeddings.
Model with_rope(Model model, const RopeOverride& rope);

}  // namespace refold
