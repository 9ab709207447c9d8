#include "engine/torch/functions.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "engine/torch/held.h"

namespace refold {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x r w with r = 1 / rms(x), per row. With h = g w: dL/dx = r (h - x r^2 mean(h x)).
struct RmsNorm : torch::autograd::Function<RmsNorm> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                              double eps) {
        const auto width = static_cast<double>(x.size(-1));
        const at::Tensor norm = at::norm(x, 2, {-1}, /*keepdim=*/true);
        const at::Tensor r = (norm * norm / width + eps).rsqrt_();
        context->save_for_backward({x, weight, r});
        return (x * r).mul_(weight);
    }
    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto saved = context->get_saved_variables();
        const at::Tensor &x = saved[0], &weight = saved[1], &r = saved[2], &g = gradients[0];
        const auto width = static_cast<double>(x.size(-1));
        const at::Tensor normed = x * r;
        at::Tensor gw;
        if (context->needs_input_grad(1)) gw = (g * normed).reshape({-1, x.size(-1)}).sum(0);
        const at::Tensor h = g * weight;
        const at::Tensor inner = (h * normed).sum(-1, /*keepdim=*/true).div_(-width);
        return {at::addcmul(h, normed, inner).mul_(r), gw, {}};
    }
};

struct SiluGated : torch::autograd::Function<SiluGated> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
        context->save_for_backward({gate, up});
        return at::silu(gate).mul_(up);
    }
    static variable_list backward(AutogradContext* context, variable_list gradients) {
        const auto saved = context->get_saved_variables();
        const at::Tensor &gate = saved[0], &up = saved[1], &g = gradients[0];
        return {at::silu_backward(g * up, gate), at::silu(gate).mul_(g)};
    }
};

// The leaves are inputs of the function, so that autograd sums their gradients over all uses before it passes
// them on, as it does without recomputation.
struct Recomputed : torch::autograd::Function<Recomputed> {
    struct Call {
        TensorBody body;
        size_t inputs;
    };

    static variable_list forward(AutogradContext* context, const Call& call, at::TensorList tensors) {
        context->set_materialize_grads(false);
        context->save_for_backward(tensors.vec());
        context->saved_data["call"] = hold(call);
        return call.body({tensors.begin(), tensors.begin() + static_cast<int64_t>(call.inputs)});
    }

    static variable_list backward(AutogradContext* context, variable_list gradients) {
        variable_list tensors = context->get_saved_variables();
        const auto& call = held<Call>(context->saved_data["call"]);
        const at::AutoGradMode with_gradients(true);
        std::vector<at::Tensor> inputs;
        variable_list wanted;
        std::vector<size_t> wanted_at;
        for (size_t i = 0; i < tensors.size(); ++i) {
            if (i < call.inputs) {
                inputs.push_back(tensors[i].detach());
                inputs.back().set_requires_grad(context->needs_input_grad(i));
            }
            if (!context->needs_input_grad(i)) continue;
            wanted.push_back(i < call.inputs ? inputs.back() : tensors[i]);
            wanted_at.push_back(i);
        }
        variable_list roots, root_gradients;
        const auto outputs = call.body(inputs);
        for (size_t i = 0; i < outputs.size(); ++i) {
            if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
            roots.push_back(outputs[i]);
            root_gradients.push_back(gradients[i]);
        }
        variable_list results(1 + tensors.size());
        if (roots.empty() || wanted.empty()) return results;
        const auto found = torch::autograd::grad(roots, wanted, root_gradients, /*retain_graph=*/false,
                                                 /*create_graph=*/false, /*allow_unused=*/true);
        for (size_t i = 0; i < found.size(); ++i) results[1 + wanted_at[i]] = found[i];
        return results;
    }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
    return RmsNorm::apply(x, weight, eps);
}

at::Tensor silu_gated(const at::Tensor& gate, const at::Tensor& up) { return SiluGated::apply(gate, up); }

at::Tensor turn_neighbors(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
    const at::Tensor pairs =
        at::view_as_complex(x.reshape({x.size(0), x.size(1), x.size(2), x.size(3) / 2, 2}));
    return at::view_as_real(pairs * at::complex(cosines, sines)).flatten(3);
}

std::vector<at::Tensor> recomputed(TensorBody body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& leaves) {
    std::vector<at::Tensor> tensors = inputs;
    tensors.insert(tensors.end(), leaves.begin(), leaves.end());
    return Recomputed::apply(Recomputed::Call{std::move(body), inputs.size()}, at::TensorList(tensors));
}

}  // namespace refold
