// The keys and values before the sequence (prefix tuning).
#pragma once

#include <vector>

#include "model/model.h"

namespace refold {

// Row major [n_prefix][kv heads of the layer * head_dim]. Keys are not rotated: a prefix has no position.
struct PrefixRows {
    std::vector<float> keys, values;
};

// As the layer stores them (attn.prefix_k, attn.prefix_v), or made of its vectors p (attn.prefix) by its own
// maps: keys norm(W_k p + b_k), values W_v p + b_v, where b and norm (attn.k_norm) are the layer's, if it has
// them ("Relaxed Recursive Transformers", Appendix K). For a layer with attention of a model with a prefix.
PrefixRows prefix_rows(const Model& model, size_t layer);

}  // namespace refold
