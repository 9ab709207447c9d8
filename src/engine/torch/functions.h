// Operations with gradients of their own, where those that libtorch derives keep or pass over more memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace refold {

// x [..., width] / rms(x) * weight [width].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up; keeps these two alone.
at::Tensor silu_gated(const at::Tensor& gate, const at::Tensor& up);

// Heads x [sequences, tokens, heads, head_dim] whose pairs (2i, 2i+1) are turned by cosines and sines
// [tokens, 1, head_dim / 2].
at::Tensor turn_neighbours(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines);

// body(inputs), computed again from the inputs when its gradient is needed; what it keeps for that is let go
// until then. `leaves` are all other tensors with gradients that the body reads.
using TensorBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
std::vector<at::Tensor> recomputed(TensorBody body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& leaves);

}  // namespace refold
