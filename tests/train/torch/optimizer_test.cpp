#include "train/torch/optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>

#include "core/error.h"
#include "train/several.h"

namespace refold {
namespace {

using Leaves = std::map<std::string, at::Tensor>;

// Leaves larger than a thread's block, with sizes that no vector width divides, and a leaf of one element.
// Uses its own generator, because processes are threads here.
Leaves make_leaves() {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(uint64_t{5});
    return {{"bias", at::randn({129}, random)},
            {"embedding", at::randn({301, 173}, random)},
            {"norm", at::ones({1})},
            {"weight", at::randn({37, 53}, random)}};
}

void set_gradients(const Leaves& leaves, int64_t step) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
    for (const auto& [name, leaf] : leaves)
        leaf.mutable_grad() = at::randn(leaf.sizes(), random) * 0.1 + leaf * 0.01;
}

double rate(int64_t step) { return 1e-2 / static_cast<double>(1 + step % 7); }

TrainOptions with_decay() {
    TrainOptions options;
    options.weight_decay = 0.05;
    return options;
}

double difference(const Leaves& a, const Leaves& b) {
    double largest = 0;
    for (const auto& [name, leaf] : a)
        largest = std::max(largest, (leaf - b.at(name)).abs().max().item<double>());
    return largest;
}

TEST(Optimizer, IsTorchsAdamW) {
    Processes alone{Rendezvous{}};
    const Leaves own = make_leaves(), other = make_leaves();
    Optimizer optimizer(own, with_decay(), alone);
    const auto decayed = [](double decay) {
        auto options = std::make_unique<torch::optim::AdamWOptions>(0.1);
        options->betas({0.9, 0.95}).eps(1e-8).weight_decay(decay);
        return options;
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{other.at("embedding"), other.at("weight")}, decayed(0.05));
    groups.emplace_back(std::vector<at::Tensor>{other.at("bias"), other.at("norm")}, decayed(0));
    torch::optim::AdamW reference(groups);
    for (int64_t step = 0; step < 100; ++step) {
        set_gradients(own, step);
        set_gradients(other, step);
        optimizer.step(rate(step), 0.5);
        for (const auto& [name, leaf] : other) leaf.mutable_grad().mul_(0.5);
        for (auto& group : reference.param_groups())
            static_cast<torch::optim::AdamWOptions&>(group.options()).lr(rate(step));
        reference.step();
    }
    EXPECT_GT(difference(own, make_leaves()), 0.1);
    EXPECT_LT(difference(own, other), 2e-6);
}

// Gradients as large models have them after clipping, 1e-5 per weight, and PostShare's learning rate: decay
// may take 400 * 5e-5 * 0.1 = 0.2 % off the weights. Decay that is added to the gradient leaves 40 % of them.
TEST(Optimizer, DecayOfSmallGradientsDoesNotShrinkTheWeights) {
    Processes alone{Rendezvous{}};
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(uint64_t{7});
    const at::Tensor before = at::randn({64, 64}, random) * 0.02;
    const Leaves leaves = {{"weight", before.clone()}};
    TrainOptions options;
    options.weight_decay = 0.1;
    Optimizer optimizer(leaves, options, alone);
    for (int64_t step = 0; step < 400; ++step) {
        leaves.at("weight").mutable_grad() = at::randn({64, 64}, random) * 1e-5;
        optimizer.step(5e-5);
    }
    const double part = ((leaves.at("weight") * before).sum() / before.square().sum()).item<double>();
    EXPECT_NEAR(part, 0.998, 2e-3);
}

TEST(Optimizer, GradientNorm) {
    Processes alone{Rendezvous{}};
    const Leaves leaves = make_leaves();
    Optimizer optimizer(leaves, with_decay(), alone);
    set_gradients(leaves, 1);
    leaves.at("bias").mutable_grad().reset();
    double squares = 0;
    for (const char* name : {"embedding", "norm", "weight"})
        squares += leaves.at(name).grad().to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(optimizer.gradient_norm(), std::sqrt(squares), 1e-9 * std::sqrt(squares));
    optimizer.zero_gradients();
    EXPECT_EQ(optimizer.gradient_norm(), 0);
}

// A leaf that a step does not use keeps moving by its momentum.
TEST(Optimizer, NoGradientIsZeroGradient) {
    Processes alone{Rendezvous{}};
    const Leaves a = make_leaves(), b = make_leaves();
    Optimizer first(a, with_decay(), alone), second(b, with_decay(), alone);
    for (const Leaves& leaves : {a, b}) set_gradients(leaves, 1);
    first.step(0.01);
    second.step(0.01);
    a.at("weight").mutable_grad().reset();
    b.at("weight").mutable_grad().zero_();
    first.step(0.01);
    second.step(0.01);
    EXPECT_EQ(difference(a, b), 0);
    EXPECT_GT((a.at("weight") - make_leaves().at("weight")).abs().max().item<double>(), 0.015);
}

TEST(Optimizer, GoesOnBitForBit) {
    Processes alone{Rendezvous{}};
    const Leaves whole = make_leaves();
    Optimizer optimizer(whole, with_decay(), alone);
    Leaves copy;
    std::map<std::string, at::Tensor> state;
    for (int64_t step = 0; step < 10; ++step) {
        if (step == 5) {
            for (const auto& [name, leaf] : whole) copy[name] = leaf.clone();
            for (const auto& [name, x] : optimizer.state()) state[name] = x.clone();
        }
        set_gradients(whole, step);
        optimizer.step(rate(step));
    }
    Optimizer resumed(copy, with_decay(), alone);
    resumed.restore(state);
    for (int64_t step = 5; step < 10; ++step) {
        set_gradients(copy, step);
        resumed.step(rate(step));
    }
    EXPECT_EQ(difference(whole, copy), 0);
}

// The message of Error(input).
std::string refused(Optimizer& optimizer, const std::map<std::string, at::Tensor>& state) {
    try {
        optimizer.restore(state);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::input);
        return error.what();
    }
    return "taken";
}

TEST(Optimizer, RefusesTheStateOfOthers) {
    Processes alone{Rendezvous{}};
    Leaves leaves = make_leaves();
    Optimizer optimizer(leaves, with_decay(), alone);
    const auto state = optimizer.state();
    Leaves renamed = leaves;
    renamed["other"] = renamed.extract("norm").mapped();
    Optimizer other(renamed, with_decay(), alone);
    EXPECT_THAT(refused(other, state), testing::HasSubstr("other weights"));
    auto short_state = state;
    short_state["m"] = at::zeros({3});
    EXPECT_THAT(refused(optimizer, short_state), testing::HasSubstr("'m'"));
    short_state = state;
    short_state.erase("v");
    EXPECT_THAT(refused(optimizer, short_state), testing::HasSubstr("'v'"));
    in_processes(2, [&](Processes& processes) {
        Optimizer part(make_leaves(), with_decay(), processes);
        EXPECT_THAT(refused(part, state), testing::HasSubstr("of 1, expected"));
    });
}

TEST(Optimizer, ProcessesShareTheStateAndHaveAllWeights) {
    Processes alone{Rendezvous{}};
    const Leaves whole = make_leaves();
    Optimizer optimizer(whole, with_decay(), alone);
    double norm = 0;
    for (int64_t step = 0; step < 5; ++step) {
        set_gradients(whole, step);
        norm = optimizer.gradient_norm();
        optimizer.step(rate(step));
    }
    const int64_t numbers = optimizer.state().at("m").numel();
    in_processes(3, [&](Processes& processes) {
        Leaves leaves;
        for (const auto& [name, leaf] : make_leaves()) leaves[name] = leaf.clone();
        Optimizer part(leaves, with_decay(), processes);
        double part_norm = 0;
        for (int64_t step = 0; step < 5; ++step) {
            set_gradients(leaves, step);
            part_norm = part.gradient_norm();
            part.step(rate(step));
        }
        EXPECT_LT(difference(leaves, whole), 1e-7);
        EXPECT_NEAR(part_norm, norm, 1e-12 * norm);
        // Shares are equal, although one leaf has nearly all elements.
        for (const char* name : {"m", "v"}) EXPECT_NEAR(part.state().at(name).numel(), numbers / 3, 2);
        part.restore(part.state());
    });
}

// More processes than elements.
TEST(Optimizer, ProcessesWithoutNumbers) {
    in_processes(3, [&](Processes& processes) {
        const Leaves leaves = {{"x", at::ones({2})}};
        Optimizer optimizer(leaves, with_decay(), processes);
        leaves.at("x").mutable_grad() = at::ones({2});
        optimizer.step(0.1);
        EXPECT_NEAR(leaves.at("x").sum().item<double>(), 1.8, 1e-6);
        EXPECT_EQ(optimizer.state().at("m").numel(), processes.rank() < 2 ? 1 : 0);
    });
}

}  // namespace
}  // namespace refold
