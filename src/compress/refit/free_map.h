// The part of a linear map that nothing else uses, so that it can be solved anew.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compress/rewrite/cut.h"
#include "model/model.h"

namespace refold {

// W x = fixed x + prior features(x), where `prior` may be replaced.
struct FreeMap {
    struct Values {
        std::vector<float> prior;  // [outputs x inputs]
        std::vector<float> fixed;  // [outputs x features of x]; empty: zero
        // The features of rows of x: [rows x inputs]. Null: x itself.
        std::function<std::vector<float>(int64_t rows, const float* x)> features;
    };
    std::string what;                  // for reports: "9 heads", "rank 57"; empty: the whole map
    std::vector<std::string> tensors;  // of the prior
    int64_t inputs = 0, outputs = 0;
    // Reads weights of the given model, which must still exist. Not in a dry run.
    std::function<Values()> values;
    // The model with `solved` {inputs, outputs} in place of the prior, under a name of this layer.
    std::function<Model(const Model&, const Tensor& solved, std::vector<Requantized>&)> install;
};

// Nothing when all of the slot's weight is shared with other layers or slots. Of a LowRank or a LoRA the
// output factor is free; of shared heads (attn.o) those that only this layer uses; of Tucker factors the part
// of the core that only this slot uses.
std::optional<FreeMap> free_map(const Model& model, size_t layer, Slot slot);

// True when another layer reads the tensor.
bool is_read_elsewhere(const Model& model, const std::string& tensor, size_t layer);

}  // namespace refold
