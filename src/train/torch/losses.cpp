#include "train/torch/losses.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "core/error.h"

namespace refold {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Sum of the negative log-probabilities of targets. The gradient overwrites the log-probabilities.
struct NegativeLogLikelihood : torch::autograd::Function<NegativeLogLikelihood> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets) {
        const at::Tensor log_p = at::log_softmax(logits, -1), indices = targets.unsqueeze(1);
        context->save_for_backward({log_p, indices});
        return -log_p.gather(1, indices).sum();
    }
    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto saved = context->get_saved_variables();
        const at::Tensor gradient = saved[0].exp_();
        gradient.scatter_add_(1, saved[1], at::full(saved[1].sizes(), -1, gradient.options()));
        return {gradient.mul_(gradients[0]), {}};
    }
};

// A scalar with precomputed gradients, which backward() passes on without a copy.
struct WithGradients : torch::autograd::Function<WithGradients> {
    struct Gradients : torch::CustomClassHolder {
        std::vector<at::Tensor> of_inputs;
    };

    static at::Tensor forward(AutogradContext* context, const at::Tensor& value,
                              const c10::intrusive_ptr<Gradients>& gradients, at::TensorList) {
        context->saved_data["gradients"] = c10::IValue::make_capsule(gradients);
        return value.clone();
    }
    static variable_list backward(AutogradContext* context, variable_list above) {
        const auto capsule = context->saved_data["gradients"].toCapsule();
        auto& gradients = static_cast<Gradients&>(*capsule).of_inputs;
        if (gradients.empty()) fail(ErrorCode::internal, "losses", "a second backward pass");
        variable_list out(2);
        for (at::Tensor& gradient : gradients) out.push_back(gradient.mul_(above[0]));
        gradients.clear();
        return out;
    }
};

// The leaves that `result` depends on and that require gradients.
std::vector<at::Tensor> leaves_of(const at::Tensor& result) {
    std::vector<at::Tensor> leaves;
    std::vector<Node*> open = {result.grad_fn().get()};
    std::set<Node*> seen;
    while (!open.empty()) {
        Node* node = open.back();
        open.pop_back();
        if (node == nullptr || !seen.insert(node).second) continue;
        if (const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node))
            leaves.push_back(leaf->variable);
        for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
    }
    return leaves;
}

// The loss of rows first + rows[i] of the batch, given their logits [n, n_vocab].
using RowsLoss = std::function<at::Tensor(const at::Tensor& logits, int64_t first, const at::Tensor& rows)>;

// Computes loss and gradients chunk by chunk, so that logits are computed once and only one chunk of them
// exists.
VocabularyLoss in_chunks(const LogitsOf& logits, const at::Tensor& hidden, const at::Tensor& scored,
                         int64_t chunk, const RowsLoss& loss) {
    if (hidden.dim() != 2 || scored.numel() != hidden.size(0) || chunk < 1) {
        fail(ErrorCode::internal, "losses", "{} marks for {} rows in chunks of {}", scored.numel(),
             hidden.size(0), chunk);
    }
    const bool differentiable = at::GradMode::is_enabled();
    const at::Tensor total = at::zeros({}, hidden.options().requires_grad(false));
    VocabularyLoss result{total, 0};
    // The hidden states first, then the leaves.
    std::vector<at::Tensor> inputs = {hidden}, gradients(1);
    if (differentiable && hidden.requires_grad()) gradients[0] = at::zeros_like(hidden.detach());
    for (int64_t first = 0; first < hidden.size(0); first += chunk) {
        const int64_t count = std::min(chunk, hidden.size(0) - first);
        const at::Tensor rows = scored.narrow(0, first, count).nonzero().squeeze(1);
        if (rows.size(0) == 0) continue;
        result.count += rows.size(0);
        at::Tensor of_rows = hidden.detach().narrow(0, first, count);
        if (rows.size(0) < count) of_rows = of_rows.index_select(0, rows);
        of_rows = of_rows.detach().set_requires_grad(differentiable && hidden.requires_grad());
        const at::Tensor sum = loss(logits(of_rows), first, rows);
        total.add_(sum.detach());
        if (!differentiable || !sum.requires_grad()) continue;
        if (inputs.size() == 1) {
            for (const at::Tensor& leaf : leaves_of(sum)) {
                if (!leaf.is_same(of_rows)) inputs.push_back(leaf);
            }
            gradients.resize(inputs.size());
        }
        variable_list wanted = inputs;
        wanted[0] = of_rows;
        if (!hidden.requires_grad()) wanted.erase(wanted.begin());
        auto found = torch::autograd::grad({sum}, wanted);
        if (!hidden.requires_grad()) found.insert(found.begin(), at::Tensor());
        if (found[0].defined()) gradients[0].index_add_(0, rows + first, found[0]);
        for (size_t i = 1; i < found.size(); ++i)
            gradients[i] = gradients[i].defined() ? gradients[i].add_(found[i]) : found[i];
    }
    if (!gradients[0].defined()) {
        inputs.erase(inputs.begin());
        gradients.erase(gradients.begin());
    }
    if (!inputs.empty()) {
        auto kept = c10::make_intrusive<WithGradients::Gradients>();
        kept->of_inputs = std::move(gradients);
        result.sum = WithGradients::apply(total, kept, at::TensorList(inputs));
    }
    return result;
}

// The divergence between log-probabilities, summed over the vocabulary and all rows.
at::Tensor distance(Divergence kind, const at::Tensor& teacher, const at::Tensor& student) {
    switch (kind) {
        case Divergence::forward_kl: return (teacher.exp() * (teacher - student)).sum();
        case Divergence::reverse_kl: return (student.exp() * (student - teacher)).sum();
        case Divergence::jensen_shannon: {
            const at::Tensor middle = at::logaddexp(teacher, student) - std::numbers::ln2;
            return (teacher.exp() * (teacher - middle) + student.exp() * (student - middle)).sum() / 2;
        }
        case Divergence::total_variation: return (teacher.exp() - student.exp()).abs().sum() / 2;
    }
    fail(ErrorCode::internal, "losses", "unknown divergence");
}

}  // namespace

VocabularyLoss cross_entropy(const LogitsOf& logits, const at::Tensor& hidden, const at::Tensor& targets,
                             const at::Tensor& scored, int64_t chunk) {
    return in_chunks(logits, hidden, scored, chunk,
                     [&](const at::Tensor& of_rows, int64_t first, const at::Tensor& rows) {
                         return NegativeLogLikelihood::apply(of_rows, targets.index_select(0, rows + first));
                     });
}

VocabularyLoss divergence(Divergence kind, const LogitsOf& logits, const at::Tensor& hidden,
                          const TeacherLogits& teacher, const at::Tensor& scored, double temperature,
                          int64_t chunk) {
    return in_chunks(logits, hidden, scored, chunk,
                     [&](const at::Tensor& of_rows, int64_t first, const at::Tensor& rows) {
                         at::Tensor wanted;
                         {
                             const at::NoGradGuard constant;
                             const int64_t count = std::min(chunk, hidden.size(0) - first);
                             wanted = teacher(first, count);
                             if (rows.size(0) < count) wanted = wanted.index_select(0, rows);
                             wanted = at::log_softmax(wanted.to(of_rows.scalar_type()) / temperature, -1);
                         }
                         const at::Tensor own = at::log_softmax(of_rows / temperature, -1);
                         return distance(kind, wanted, own) * (temperature * temperature);
                     });
}

}  // namespace refold
