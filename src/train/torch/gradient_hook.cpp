#include "train/torch/gradient_hook.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "core/error.h"

namespace refold {
namespace {

class Hook : public torch::autograd::FunctionPostHook {
public:
    explicit Hook(std::function<void()> body) : body_(std::move(body)) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
        body_();
        return outputs;
    }

private:
    std::function<void()> body_;
};

}  // namespace

struct GradientHook::State {
    std::shared_ptr<torch::autograd::Node> accumulator;
    uintptr_t key;
};

GradientHook::GradientHook(const at::Tensor& leaf, std::function<void()> body) {
    if (!leaf.is_leaf() || !leaf.requires_grad())
        fail(ErrorCode::internal, "training", "a trained tensor is no leaf that has gradients");
    auto accumulator = torch::autograd::impl::grad_accumulator(leaf);
    const uintptr_t key = accumulator->add_post_hook(std::make_unique<Hook>(std::move(body)));
    state_.reset(new State{std::move(accumulator), key});
}

GradientHook::~GradientHook() {
    if (state_) state_->accumulator->del_post_hook(state_->key);
}

}  // namespace refold
