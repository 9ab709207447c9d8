// The tanh approximation of GELU in float32: ggml's looks it up in an F16 table and loses three digits.
#pragma once

#include "engine/ggml/handles.h"

namespace refold {

// gelu_tanh(x) * up, or gelu_tanh(x) where `up` is null. x, up [n, tokens], rows contiguous.
ggml_tensor* gelu_tanh(ggml_context* context, ggml_tensor* x, ggml_tensor* up = nullptr);

}  // namespace refold
