// The rows of F32 activations, one for each token.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>

namespace refold {

inline float* row_of(const ggml_tensor* x, int64_t row) {
    return reinterpret_cast<float*>(static_cast<char*>(x->data) + static_cast<size_t>(row) * x->nb[1]);
}

}  // namespace refold
