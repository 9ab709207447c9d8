// The tensor that TensorLLM decomposes: the attention weights of a layer, stacked by head (arXiv 2501.15674,
// section III).
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

namespace tensorllm {

using Ranks = std::array<int64_t, 3>;

// "288,32,4" for each of `layers`, or by layer: "20-24:288,32,4;25-29:432,48,4", where only layers in
// `layers` count. Throws Error(usage) for anything else, and for a layer that is named twice or not in the
// model.
std::map<size_t, Ranks> ranks_by_layer(const std::string& text, const std::vector<size_t>& layers,
                                       size_t n_layer);

// The input of one decomposition: matrices of a layer, stacked by head (equations 7 and 8).
struct Stack {
    std::vector<size_t> layers;  // all with the same weights
    std::vector<Slot> roles;
    std::array<int64_t, 4> dims{};  // {n_embd, head_dim, roles, heads}
    Ranks ranks{};                  // at most the dimensions

    int64_t heads_of(Slot slot, const ModelConfig& config) const;  // heads of the slot itself
    int64_t parameters() const;                                    // of the factors
};

// True when the rows of the slot's heads are stored as rotary pairs, but as halves in the family's
// checkpoints.
bool stored_as_pairs(const Family& family, Slot slot);

// W_all: element (i, j, t, h) is W_t[j of head h][i], for attn.o W_t[i][j of head h]. The rows of a head are
// in the order of the family's checkpoints. Heads of slots with fewer heads are repeated for each query head
// of their group.
std::vector<float> tensor_of(const Model& model, const Stack& stack);

}  // namespace tensorllm
}  // namespace refold
