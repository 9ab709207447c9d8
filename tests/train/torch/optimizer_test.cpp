#include "train/torch/optimizer.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/optim/adamw.h>

#include "train/several.h"

namespace refold {
namespace {

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
    Leaves copy, state;
    for (int64_t step = 0; step < 10; ++step) {
        if (step == 5) {
            for (const auto& [name, leaf] : whole) copy[name] = leaf.clone();
            for (const auto& [name, x] : optimizer.state()) state[name] = x.clone();
        }
        set_gradients(whole, step);
        optimizer.step(rate(step));
    }
    Optimizer resumed(copy, with_decay(), alone);
    for (const auto& [name, x] : resumed.state()) at::Tensor(x).copy_(state.at(name));
    resumed.set_steps(5);
    for (int64_t step = 5; step < 10; ++step) {
        set_gradients(copy, step);
        resumed.step(rate(step));
    }
    EXPECT_EQ(difference(whole, copy), 0);
}

Leaves rounded(const Leaves& leaves) {
    Leaves out;
    for (const auto& [name, leaf] : leaves)
        out[name] = leaf.dim() > 1 ? leaf.to(at::kBFloat16) : leaf.clone();
    return out;
}

// Steps far smaller than BF16's spacing add up in master weights, which the leaves follow.
TEST(Optimizer, MasterWeightsOfRoundedLeaves) {
    const Leaves exact = make_leaves();
    Processes alone{Rendezvous{}};
    const Leaves expected = make_leaves();
    Optimizer reference(expected, with_decay(), alone);
    // The same gradients for both, which do not depend on the weights.
    const auto gradients = [](const Leaves& of, int64_t step) {
        at::Generator random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step % 3));
        for (const auto& [name, leaf] : of) {
            const at::Tensor g = at::randn(leaf.sizes(), random).to(at::kBFloat16);
            leaf.mutable_grad() = g.to(leaf.scalar_type());
        }
    };
    for (int64_t step = 0; step < 20; ++step) {
        gradients(expected, step);
        reference.step(1e-4);
    }
    for (const int size : {1, 3}) {
        const auto body = [&](Processes& processes) {
            const Leaves leaves = rounded(exact);
            Optimizer optimizer(leaves, with_decay(), processes);
            optimizer.set_masters([&](const std::string& name) { return exact.at(name); });
            for (int64_t step = 0; step < 20; ++step) {
                gradients(leaves, step);
                optimizer.step(1e-4);
            }
            // m, v and master weights.
            EXPECT_EQ(optimizer.bytes(), 12U * static_cast<uint64_t>(optimizer.shares().own_count()));
            EXPECT_GT(difference(leaves, rounded(exact)), 0);
            EXPECT_EQ(difference(leaves, rounded(expected)), 0);
            for (const auto& [name, leaf] : expected) {
                const at::Tensor master = optimizer.shares().gathered(
                    optimizer.own_weights(), optimizer.shares().begin_of(name), leaf.numel());
                EXPECT_TRUE(at::equal(master.view(leaf.sizes()), leaf)) << name;
            }
        };
        if (size == 1) {
            body(alone);
        } else {
            in_processes(size, body);
        }
    }
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
