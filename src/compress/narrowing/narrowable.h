// The parts of modules that can go: channels of FFNs, and KV groups of attentions with their query heads.
#pragma once

#include <vector>

#include "compress/refit/output_solver.h"
#include "compress/rewrite/cut.h"

namespace refold {

// A module whose weights are its layer's alone.
struct Narrowable {
    size_t layer = 0;
    const OutputMap* module = nullptr;
    int64_t parts = 0;
    int64_t width = 1;       // inputs of the output map that belong to a part
    int64_t parameters = 0;  // of a part

    bool is_attention() const { return module->matrix == Slot::attn_o; }
};

// The FFNs of `layers`, and the attentions where wanted, in the order of the forward pass. Attentions that
// share anything with other layers are left out; an FFN that does is Error(unsupported).
std::vector<Narrowable> narrowable_modules(const Model& model, const std::vector<size_t>& layers,
                                           bool attentions);

// The model without these parts (in any order); without any left, the layer loses the module.
Model without_parts(const Model& model, const Narrowable& from, const std::vector<int64_t>& parts,
                    std::vector<Requantized>& requantized);

}  // namespace refold
