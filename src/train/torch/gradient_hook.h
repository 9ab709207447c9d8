// Called when a leaf gets a gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace refold {

// Calls `body` after something has been added to the leaf's gradient in a backward pass, in that pass's
// thread, until it is destroyed. A pass adds a leaf's gradient at once, summed over its uses.
class GradientHook {
public:
    GradientHook(const at::Tensor& leaf, std::function<void()> body);
    ~GradientHook();
    GradientHook(GradientHook&&) = default;
    GradientHook& operator=(GradientHook&&) = delete;

private:
    struct State;
    std::shared_ptr<State> state_;
};

}  // namespace refold
