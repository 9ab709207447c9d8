// Taking modules out of layers, and the sizes that positions have by themselves.
#pragma once

#include "model/model.h"

namespace refold {

// The position has no attention (no FFN) from now on: its slots go, norms and biases included, except a norm
// that the other module reads as well (GPT-J) and the norms of the residual stream (BERT). Tensors stay;
// Model::drop_unreferenced() forgets them.
void remove_attention(Model& model, size_t position);
void remove_ffn(Model& model, size_t position);

// ModelConfig::heads_kv and ffs; at 0 the module must have been removed.
void set_heads_kv(Model& model, size_t position, int64_t heads);
void set_ff(Model& model, size_t position, int64_t channels);

}  // namespace refold
