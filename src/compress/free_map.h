// The part of a linear map that no other place uses, so that it can be solved anew.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/cut.h"
#include "model/model.h"

namespace refold {

// W x = fixed x + prior features(x), where `prior` may be replaced.
struct FreeMap {
    struct Values {
        std::vector<float> prior;  // [outputs x inputs]
        std::vector<float> fixed;  // [outputs x features of x]; empty: zero
        // Of rows of x: [rows x inputs]. Null: x itself.
        std::function<std::vector<float>(int64_t rows, const float* x)> features;
    };
    std::string what;                  // "9 heads", "rank 57": for reports; empty: the whole
    std::vector<std::string> tensors;  // that the prior comes from
    int64_t inputs = 0, outputs = 0;
    // Reads the weights, which a dry run does not have, of the model that was given, which must be there
    // still.
    std::function<Values()> values;
    // The model with `solved` {inputs, outputs} in place of the prior, stored under a name of this position.
    std::function<Model(const Model&, const Tensor& solved, std::vector<Requantised>&)> install;
};

// Nothing where all of the slot's weight is shared, or common to other slots: of a LowRank and a LoRA the
// factor behind is free, of shared heads (attn.o) those that only this position has, of Tucker factors what
// of the core is this slot's alone.
std::optional<FreeMap> free_map(const Model& model, size_t position, Slot slot);

// Whether a position other than this one reads the tensor.
bool is_read_elsewhere(const Model& model, const std::string& tensor, size_t position);

}  // namespace refold
