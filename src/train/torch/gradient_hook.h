// A callback for gradients of a leaf.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace refold {

// While it lives, calls `body` whenever a backward pass has added to the leaf's gradient, in the thread of
// that pass. A pass adds the gradient once, summed over the leaf's uses.
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
