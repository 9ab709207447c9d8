#include "train/torch/importance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "core/error.h"
#include "core/parallel.h"
#include "engine/torch/device.h"
#include "engine/torch/model.h"
#include "train/torch/gradient_hook.h"
#include "train/torch/losses.h"
#include "train/torch/processes.h"

namespace refold {
namespace {

at::Tensor as_matrix(const at::Tensor& leaf) { return leaf.detach().reshape({-1, leaf.size(-1)}); }

// The importance from gradient g and mean squared gradient h; the one that `kind` does not need may be
// undefined.
at::Tensor salience(Taylor kind, const at::Tensor& w, const at::Tensor& g, const at::Tensor& h) {
    switch (kind) {
        case Taylor::element2: return w * h * w;
        case Taylor::mix: return w * g - w * h * w / 2;
        default: return w * g;
    }
}

class Gradients {
public:
    explicit Gradients(const ImportanceRequest& request)
        : request_(request),
          model_(request.model, true, at::TensorOptions(at::kFloat).device(device_of(request.device))) {
        TorchModel::Execution execution;
        execution.checkpointing = true;
        model_.set_execution(execution);
        for (const auto& [name, leaf] : model_.parameters())
            leaf.set_requires_grad(request.tensors.contains(name));
    }

    // First order: one backward pass over all sequences, which frees each gradient once it is complete.
    Importance first_order() {
        const at::Tensor tokens = all_tokens();
        std::vector<GradientHook> hooks;
        int64_t done = 0;
        for (const auto& [name, by_column] : request_.tensors) {
            const at::Tensor& leaf = model_.parameters().at(name);
            hooks.emplace_back(leaf, [&, tensor = name] {
                const at::NoGradGuard guard;
                reduce(tensor, leaf.grad(), {});
                leaf.mutable_grad().reset();
                tell(++done, static_cast<int64_t>(request_.tensors.size()));
            });
        }
        backward(tokens);
        return std::move(out_);
    }

    // Second order: squared gradients need a backward pass per sequence.
    Importance second_order() {
        const at::Tensor tokens = all_tokens();
        const auto count = tokens.size(0);
        std::map<std::string, at::Tensor> first, second;
        for (int64_t s = 0; s < count; ++s) {
            backward(tokens.narrow(0, s, 1));
            const at::NoGradGuard guard;
            for (const auto& [name, by_column] : request_.tensors) {
                at::Tensor& g = model_.parameters().at(name).mutable_grad();
                at::Tensor &sum = first[name], &squares = second[name];
                if (!sum.defined()) {
                    sum = at::zeros_like(g);
                    squares = at::zeros_like(g);
                }
                sum.add_(g, 1.0 / static_cast<double>(count));
                squares.addcmul_(g, g, 1.0 / static_cast<double>(count));
                g.zero_();
            }
            tell(s + 1, count);
        }
        const at::NoGradGuard guard;
        for (const auto& [name, by_column] : request_.tensors) reduce(name, first.at(name), second.at(name));
        return std::move(out_);
    }

private:
    at::Tensor all_tokens() const {
        std::vector<at::Tensor> rows;
        for (const auto& sequence : request_.sequences)
            rows.push_back(at::tensor(at::ArrayRef<int32_t>(sequence)).to(at::kLong));
        return at::stack(rows).to(model_.device());
    }

    // Backward pass of the mean loss of sequences of one length.
    void backward(const at::Tensor& tokens) {
        const int64_t length = tokens.size(1) - 1;
        const auto hidden = model_.hidden(tokens.narrow(1, 0, length));
        const at::Tensor targets = tokens.narrow(1, 1, length).reshape({-1});
        const VocabularyLoss loss = cross_entropy([&](const at::Tensor& x) { return model_.logits(x); },
                                                  hidden.final, targets, at::ones_like(targets, at::kBool));
        const at::Tensor mean = loss.sum / static_cast<double>(loss.count);
        if (!std::isfinite(mean.item<double>()))
            fail(ErrorCode::input, "importance", "{}: the loss is no number", request_.model.label);
        if (mean.requires_grad()) mean.backward();
    }

    void reduce(const std::string& name, const at::Tensor& gradient, const at::Tensor& squares) {
        const at::Tensor w = as_matrix(model_.parameters().at(name));
        const at::Tensor s = salience(request_.taylor, w, as_matrix(gradient),
                                      squares.defined() ? as_matrix(squares) : at::Tensor());
        const int64_t along = request_.tensors.at(name) ? 0 : 1;
        const at::Tensor sums = request_.taylor == Taylor::vector ? s.sum(along, false, at::kDouble).abs()
                                                                  : s.abs().sum(along, false, at::kDouble);
        const at::Tensor values = sums.to(at::kCPU, at::kFloat).contiguous();
        out_[name].assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
    }

    void tell(int64_t done, int64_t total) const {
        if (request_.report) request_.report(done, total);
        if (done < total && request_.stop && request_.stop())
            fail(ErrorCode::interrupted, "importance", "interrupted");
    }

    const ImportanceRequest& request_;
    TorchModel model_;
    Importance out_;
};

}  // namespace

Importance importance_by_gradients(const ImportanceRequest& request) {
    at::set_num_threads(request.threads > 0 ? request.threads : default_threads());
    Gradients gradients(request);
    const bool squares = request.taylor == Taylor::element2 || request.taylor == Taylor::mix;
    return squares ? gradients.second_order() : gradients.first_order();
}

}  // namespace refold
