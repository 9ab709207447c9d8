// Operations with hand-written gradients, which keep or read less memory than those that libtorch derives.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace refold {

// x [..., width] / rms(x) * weight [width].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up. Keeps only gate and up for the backward pass.
at::Tensor silu_gated(const at::Tensor& gate, const at::Tensor& up);

// Rotary embedding of x [sequences, tokens, heads, head_dim]: rotates the pairs (2i, 2i + 1) by cosines and
// sines [tokens, 1, head_dim / 2].
at::Tensor turn_neighbors(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines);

// body(inputs), computed again from the inputs in the backward pass, so that its intermediates are not kept
// (activation checkpointing). `leaves` are all other tensors with gradients that the body reads.
using TensorBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;
std::vector<at::Tensor> recomputed(TensorBody body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& leaves);

}  // namespace refold
