// The tanh form of GELU in float32: ggml's own goes through a table of half floats, which costs three digits.
#pragma once

#include "engine/ggml/handles.h"

namespace refold {

// gelu_tanh(x) * up, both [n, tokens] with contiguous rows; without `up` just gelu_tanh(x).
ggml_tensor* gelu_tanh(ggml_context* context, ggml_tensor* x, ggml_tensor* up = nullptr);

}  // namespace refold
