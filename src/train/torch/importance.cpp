#include "train/torch/importance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "core/error.h"
#include "core/parallel.h"
#include "engine/torch/model.h"
#include "train/torch/losses.h"

namespace refold {
namespace {

at::Tensor as_matrix(const at::Tensor& leaf) { return leaf.detach().reshape({-1, leaf.size(-1)}); }

// Of gradient and mean squared gradient; what a kind does not need is undefined.
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
          model_(request.model, true),
          squares_(request.taylor == Taylor::element2 || request.taylor == Taylor::mix) {
        TorchModel::Execution execution;
        execution.checkpointing = true;
        model_.set_execution(execution);
        for (const auto& [name, leaf] : model_.parameters())
            leaf.set_requires_grad(request.tensors.contains(name));
    }

    void add(const std::vector<int32_t>& sequence) {
        const std::vector<int64_t> ids(sequence.begin(), sequence.end());
        const auto length = static_cast<int64_t>(ids.size()) - 1;
        const at::Tensor all = at::tensor(ids, at::kLong).to(model_.parameters().begin()->second.device());
        const auto hidden = model_.hidden(all.narrow(0, 0, length).unsqueeze(0));
        const VocabularyLoss loss =
            cross_entropy([&](const at::Tensor& x) { return model_.logits(x); }, hidden.final,
                          all.narrow(0, 1, length), at::ones({length}, all.options().dtype(at::kBool)));
        const auto count = static_cast<double>(request_.sequences.size());
        const at::Tensor mean = loss.sum / (static_cast<double>(length) * count);
        if (!std::isfinite(mean.item<double>()))
            fail(ErrorCode::input, "importance", "{}: the loss is no number", request_.model.label);
        mean.backward();
        if (squares_) collect(count);
    }

    Importance reduced() const {
        Importance out;
        for (const auto& [name, by_column] : request_.tensors) {
            const at::Tensor& leaf = model_.parameters().at(name);
            const at::Tensor w = as_matrix(leaf);
            const at::Tensor g = as_matrix(squares_ ? first_.at(name) : leaf.grad());
            const at::Tensor s =
                salience(request_.taylor, w, g, squares_ ? as_matrix(second_.at(name)) : at::Tensor());
            const int64_t along = by_column ? 0 : 1;
            const at::Tensor sums = request_.taylor == Taylor::vector
                                        ? s.sum(along, false, at::kDouble).abs()
                                        : s.abs().sum(along, false, at::kDouble);
            const at::Tensor values = sums.to(at::kCPU, at::kFloat).contiguous();
            out[name].assign(values.data_ptr<float>(), values.data_ptr<float>() + values.numel());
        }
        return out;
    }

private:
    // Gradients of one sequence, divided by how many there are.
    void collect(double count) {
        const at::NoGradGuard guard;
        for (const auto& [name, by_column] : request_.tensors) {
            at::Tensor& g = model_.parameters().at(name).mutable_grad();
            at::Tensor &first = first_[name], &second = second_[name];
            if (!first.defined()) {
                first = at::zeros_like(g);
                second = at::zeros_like(g);
            }
            first.add_(g);
            second.addcmul_(g, g, count);
            g.zero_();
        }
    }

    const ImportanceRequest& request_;
    TorchModel model_;
    bool squares_;
    std::map<std::string, at::Tensor> first_, second_;
};

}  // namespace

Importance importance_by_gradients(const ImportanceRequest& request) {
    at::set_num_threads(request.threads > 0 ? request.threads : default_threads());
    Gradients gradients(request);
    for (const auto& sequence : request.sequences) {
        if (request.stop && request.stop()) fail(ErrorCode::interrupted, "importance", "interrupted");
        gradients.add(sequence);
        if (request.report) request.report();
    }
    return gradients.reduced();
}

}  // namespace refold
