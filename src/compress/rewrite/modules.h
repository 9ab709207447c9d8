// Removing modules from layers, and sizes of single layers.
#pragma once

#include "model/model.h"

namespace refold {

// The layer has an FFN or a mixture of experts.
inline bool has_ffn(const Topology& topology, size_t layer) {
    return topology.has(layer, Slot::ffn_down) || topology.has(layer, Slot::ffn_router);
}

// Removes the slots of the layer's attention (FFN), norms and biases included. A norm that the other module
// also reads (GPT-J) and norms of the residual stream (BERT) stay. Tensors stay until
// Model::drop_unreferenced().
void remove_attention(Model& model, size_t layer);
void remove_ffn(Model& model, size_t layer);

// Set ModelConfig::heads_kv and ffs. 0: the module must have been removed.
void set_heads_kv(Model& model, size_t layer, int64_t heads);
void set_ff(Model& model, size_t layer, int64_t channels);

// Sets ModelConfig::heads_kv to the number of heads that stay, and alibi_heads to their numbers. `kept`:
// their indices in the layer, ascending.
void keep_heads_kv(Model& model, size_t layer, const std::vector<int64_t>& kept);

}  // namespace refold
