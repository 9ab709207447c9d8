// Tensors whose numbers are computed when they are read, so that a method holds shapes and not weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold::lazy {

// Whoever reads a tensor later keeps the mapped files alive by this.
using Files = std::shared_ptr<const SourceFiles>;

// A tensor as floats, row major; pages of a mapped file are given back.
std::vector<float> floats(const Tensor& tensor, const Files& files);

// A tensor of `type` from what `values` gives (row major, shape[0] contiguous). Reading it throws
// Error(input) when a number is not finite.
Tensor computed(DType type, std::vector<int64_t> shape, std::function<std::vector<float>()> values);

// Every element `value`.
Tensor constant(DType type, std::vector<int64_t> shape, float value);

// N(0, deviation^2): the same for a seed and a name everywhere.
struct Gaussian {
    float deviation = 0.02F;
    uint64_t seed = 0;
};
Tensor random(DType type, std::vector<int64_t> shape, const Gaussian& gaussian, const std::string& name);

// Element-wise mean of tensors of one shape, in float32.
Tensor mean(DType type, const std::vector<Tensor>& tensors, const Files& files);

}  // namespace refold::lazy
