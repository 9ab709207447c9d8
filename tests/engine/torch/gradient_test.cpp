// Gradients of the torch engine against finite differences, and over shared tensors.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/expression_models.h"
#include "engine/gradient_checks.h"
#include "engine/synthetic_models.h"
#include "engine/torch/model.h"
#include "model/materialize.h"

namespace refold {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

// Outputs of hidden tokens do not count: they are not to be used.
at::Tensor loss_of(const TorchModel& torch, const reference::Input& input) {
    const TorchOutput out = torch.forward(input.tokens, input.token_types, input.mask);
    return mixed({out.hidden, out.logits, out.pooled});
}

Gradients gradients_of(const Model& model, const reference::Input& input) {
    const TorchModel torch(model, true, at::kDouble);
    loss_of(torch, input).backward();
    Gradients out;
    for (const auto& [name, leaf] : torch.parameters()) out[name] = leaf.grad();
    return out;
}

void expect_finite_differences(const std::string& name, const TorchModel& torch,
                               const reference::Input& input, size_t directions = 4) {
    expect_finite_differences(
        name, torch, [&] { return loss_of(torch, input); }, directions);
}

TEST(TorchGradients, AreFiniteDifferences) {
    for (const auto& [name, model, input] : synthetic_models())
        expect_finite_differences(name, TorchModel(model, true, at::kDouble), input);
}

constexpr ExpressionShape kSmall{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 12, .vocab = 40};

// Of every factor, small ones and prefix rows included; both ways of execution.
TEST(TorchGradients, OfFactorsAreFiniteDifferences) {
    const reference::Input input{{3, 16, 0, 7, 39}, {}, {}};
    int models = 0;
    for (const auto& [name, build] : expressions::cases()) {
        const bool even = ++models % 2 == 0;
        ExpressionBuilder builder(even ? "llama" : "gptneox", static_cast<uint32_t>(models), kSmall);
        build(builder);
        expect_finite_differences(
            name,
            TorchModel(builder.finish(), true, at::kDouble,
                       even ? FactoredExecution::factored : FactoredExecution::reconstructed),
            input, 2);
    }
}

// The same function with a tensor of its own for every slot.
Model unshared(const Model& model) {
    Model out = model;
    out.tensors.clear();
    const auto write_out = [&](Slots& slots, const std::string& prefix) {
        for (auto& [slot, expression] : slots) {
            const SlotShape shape = slot_shape(slot, model.config);
            const auto bytes = quantize(DType::F32, materialize(model, expression, slot), shape.in);
            const std::string name = prefix + slot_name(slot);
            out.tensors[name] = Tensor{DType::F32, {shape.in, shape.out}, {}, [bytes] { return bytes; }};
            expression = Dense{name};
        }
    };
    for (size_t p = 0; p < out.topology.layers.size(); ++p)
        write_out(out.topology.layers[p], "own" + std::to_string(p) + ".");
    write_out(out.topology.globals, "own.");
    return out;
}

// Adds the gradient of a slot's own matrix to those of the tensors that it is made of in the shared model.
void scatter(const at::Tensor& own, const Expression& expression, Slot slot, int64_t head_dim,
             Gradients& sums) {
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        sums[dense->tensor] += own.reshape(sums[dense->tensor].sizes());
        return;
    }
    const int64_t dimension = heads_are_columns(slot) ? 1 : 0;
    int64_t at = 0;
    for (const HeadRun& run : std::get<Heads>(expression).runs) {
        const int64_t count = run.count * head_dim;
        sums[run.tensor].narrow(dimension, run.first * head_dim, count) += own.narrow(dimension, at, count);
        at += count;
    }
}

TEST(TorchGradients, OfASharedTensorIsTheSumOverItsUses) {
    int shared_models = 0;
    for (const auto& [name, model, input] : synthetic_models()) {
        if (!model.has_sharing()) continue;
        ++shared_models;
        const Gradients shared = gradients_of(model, input);
        Gradients own = gradients_of(unshared(model), input), sums;
        for (const auto& [tensor, gradient] : shared) sums[tensor] = at::zeros_like(gradient);
        const auto add = [&](const Slots& slots, const std::string& prefix) {
            for (const auto& [slot, expression] : slots) {
                if (slot != Slot::rope_freqs)
                    scatter(own.at(prefix + slot_name(slot)), expression, slot, model.config.head_dim, sums);
            }
        };
        for (size_t p = 0; p < model.topology.layers.size(); ++p)
            add(model.topology.layers[p], "own" + std::to_string(p) + ".");
        add(model.topology.globals, "own.");
        for (const auto& [tensor, gradient] : shared) {
            EXPECT_LE((gradient - sums[tensor]).abs().max().item<double>(), 1e-10) << name << " " << tensor;
        }
    }
    EXPECT_GE(shared_models, 3);
}

// Calls `visit` with every name of a stored tensor in an expression.
template <typename Visit>
void for_each_name(Dense& e, Visit&& visit) {
    visit(e.tensor);
}
template <typename Visit>
void for_each_name(Heads& e, Visit&& visit) {
    for (HeadRun& run : e.runs) visit(run.tensor);
}
template <typename Visit>
void for_each_name(LowRank& e, Visit&& visit) {
    for (std::string* name : {&e.u, &e.v, &e.scale})
        if (!name->empty()) visit(*name);
}
template <typename Visit>
void for_each_name(Tucker& e, Visit&& visit) {
    for (std::string* name : {&e.core, &e.model, &e.head, &e.roles}) visit(*name);
}
template <typename Visit>
void for_each_name(RowParts& e, Visit&& visit) {
    for (std::string& name : e.parts) visit(name);
    visit(e.ids);
}
template <typename Visit>
void for_each_name(Plus& e, Visit&& visit) {
    std::visit([&](auto& base) { for_each_name(base, visit); }, e.base);
    for_each_name(e.term, visit);
}

// The same function with a copy of the tensor for every use of it: "name@number".
Model with_copies(const Model& model) {
    Model out = model;
    out.tensors.clear();
    int copies = 0;
    const auto copy = [&](std::string& name) {
        const std::string own = name + "@" + std::to_string(++copies);
        out.tensors[own] = model.tensor(name);
        name = own;
    };
    const auto all = [&](Slots& slots) {
        for (auto& [slot, expression] : slots)
            std::visit([&](auto& e) { for_each_name(e, copy); }, expression);
    };
    for (Slots& slots : out.topology.layers) all(slots);
    all(out.topology.globals);
    return out;
}

TEST(TorchGradients, OfASharedFactorIsTheSumOverItsUses) {
    for (uint32_t seed = 1; seed <= 24; ++seed) {
        const Model model = random_expression_model(seed, {.sizes = true, .prefix = true}, kSmall);
        const reference::Input input{{3, 16, 0, 7, 39}, {}, {}};
        const Gradients shared = gradients_of(model, input);
        Gradients sums;
        for (const auto& [name, gradient] : gradients_of(with_copies(model), input)) {
            at::Tensor& sum = sums[name.substr(0, name.find('@'))];
            sum = sum.defined() ? sum + gradient : gradient;
        }
        ASSERT_EQ(shared.size(), sums.size());
        for (const auto& [name, gradient] : shared) {
            const double scale = 1 + gradient.abs().max().item<double>();
            EXPECT_LE((gradient - sums.at(name)).abs().max().item<double>(), 1e-10 * scale)
                << "seed " << seed << " " << name;
        }
    }
}

TEST(TorchGradients, OnlyOfTrainableModels) {
    const Model model = synthetic_model(synthetic::decoder());
    const std::vector<int32_t> tokens = {1, 2, 3};
    EXPECT_FALSE(TorchModel(model, false).forward(tokens).logits.requires_grad());
    EXPECT_TRUE(TorchModel(model, true).forward(tokens).logits.requires_grad());
}

}  // namespace
}  // namespace refold
