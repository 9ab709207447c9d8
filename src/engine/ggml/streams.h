// Operations on several residual streams and on gates as ggml nodes: see ForwardOps in model/forward.h. All
// values are F32 [features, tokens]; the features of a token are contiguous.
#pragma once

#include <cstdint>

#include "engine/ggml/handles.h"

namespace refold {

// ForwardOps::mix() of streams of `width` features. `width` must outlive the graph.
ggml_tensor* mix_streams(ggml_context* context, ggml_tensor* x, ggml_tensor* coefficients,
                         const int64_t& width);
// ForwardOps::with_rms_of().
ggml_tensor* with_rms_of(ggml_context* context, ggml_tensor* x, ggml_tensor* y);
// max(0, x - (mean + deviations x deviation)), both over the features of a token. `deviations` must outlive
// the graph.
ggml_tensor* cut_gates(ggml_context* context, ggml_tensor* x, const float& deviations);

}  // namespace refold
