// TensorLLM: Tucker decompositions of attention weights with factors that all heads of a layer share
// (arXiv 2501.15674, section III).
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

extern const Method kTensorLlm;

namespace tensorllm {

using Ranks = std::array<int64_t, 3>;

// "288,32,4" for each of `layers`, or by layer: "20-24:288,32,4;25-29:432,48,4", of which only those in
// `layers` count. Throws Error(usage) for anything else, and for a layer named twice or not in the model.
std::map<size_t, Ranks> ranks_by_layer(const std::string& text, const std::vector<size_t>& layers,
                                       size_t positions);

// What one decomposition is of: the matrices of some slots of a layer, head by head (equations 7 and 8).
struct Stack {
    std::vector<size_t> positions;  // that have these weights
    std::vector<Slot> roles;
    std::array<int64_t, 4> dims{};  // {n_embd, head_dim, roles, heads}
    Ranks ranks{};                  // at most the dimensions

    int64_t heads_of(Slot slot, const ModelConfig& config) const;  // that the slot itself has
    int64_t parameters() const;                                    // of the factors
};

// W_all: element (i, j, t, h) of dims is W_t[j of head h][i], for attn.o W_t[i][j of head h], the rows of a
// head in the order of the family's checkpoints. Slots of fewer heads have each repeated for its group.
std::vector<float> tensor_of(const Model& model, const Stack& stack);

}  // namespace tensorllm
}  // namespace refold
