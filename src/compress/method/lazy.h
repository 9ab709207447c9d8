// Tensors whose values are computed when they are read, so that a method holds shapes and no weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold::lazy {

// A tensor that reads mapped files later keeps them alive with this.
using Files = std::shared_ptr<const SourceFiles>;

// A tensor as floats, row major. Pages of a mapped file are released afterwards.
std::vector<float> floats(const Tensor& tensor, const Files& files);

// A tensor of a few numbers as doubles.
std::vector<double> numbers(const Tensor& tensor);

// A tensor of `type` with the values that `values` returns (row major, shape[0] contiguous). Reading it
// throws Error(input) when one is not finite.
Tensor computed(DType type, std::vector<int64_t> shape, std::function<std::vector<float>()> values);

// Every element `value`.
Tensor constant(DType type, std::vector<int64_t> shape, float value);

// N(0, deviation^2). A seed and a name give the same numbers on every machine.
struct Gaussian {
    float deviation = 0.02F;
    uint64_t seed = 0;
};
Tensor random(DType type, std::vector<int64_t> shape, const Gaussian& gaussian, const std::string& name);

// Element-wise mean of tensors of one shape, in float32.
Tensor mean(DType type, const std::vector<Tensor>& tensors, const Files& files);

}  // namespace refold::lazy
