// Gradients by finite differences.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/torch/model.h"

namespace refold {

inline at::Tensor random_like(const at::Tensor& x, uint64_t seed) {
    std::mt19937_64 random(seed);
    at::Tensor out = at::empty(x.sizes(), at::kDouble);
    double* values = out.data_ptr<double>();
    for (int64_t i = 0; i < out.numel(); ++i)
        values[i] = static_cast<double>(random() % 20001) / 10000.0 - 1.0;
    return out;
}

// A number to which every element contributes differently.
inline at::Tensor mixed(const std::vector<at::Tensor>& results) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    uint64_t seed = 1;
    for (const at::Tensor& x : results)
        if (x.defined()) loss = loss + (x * random_like(x.detach(), ++seed)).sum();
    return loss;
}

using Loss = std::function<at::Tensor()>;

// Change of the loss when `leaf` moves along `direction`, per unit; central differences of the fourth order.
inline double slope(const Loss& loss, const at::Tensor& leaf, const at::Tensor& direction) {
    constexpr double kStep = 4e-4;
    const at::NoGradGuard guard;
    const at::Tensor before = leaf.clone();
    const auto loss_at = [&](double steps) {
        leaf.copy_(before + direction * (steps * kStep));
        return loss().item<double>();
    };
    const double change = 8 * (loss_at(1) - loss_at(-1)) - (loss_at(2) - loss_at(-2));
    leaf.copy_(before);
    return change / (12 * kStep);
}

// All elements of a tensor at once, then some alone.
inline std::vector<at::Tensor> directions_in(const at::Tensor& leaf) {
    std::vector<at::Tensor> directions = {random_like(leaf.detach(), 7) / std::sqrt(leaf.numel())};
    for (const int64_t element : {int64_t{0}, leaf.numel() / 2, leaf.numel() - 1}) {
        const at::Tensor direction = at::zeros(leaf.sizes(), at::kDouble);
        direction.view({-1})[element] = 1;
        directions.push_back(direction);
    }
    return directions;
}

// `directions`: of each leaf, at most.
inline void expect_finite_differences(const std::string& name, const TorchModel& torch, const Loss& loss,
                                      size_t directions = 4) {
    loss().backward();
    for (const auto& [tensor, leaf] : torch.parameters()) {
        if (tensor == "score" || tensor == "score.bias") continue;  // no loss is made of scores
        ASSERT_TRUE(leaf.grad().defined()) << name << " " << tensor;
        std::vector<at::Tensor> along = directions_in(leaf);
        along.resize(std::min(along.size(), directions));
        for (const at::Tensor& direction : along) {
            const double expected = slope(loss, leaf, direction);
            const double difference = std::abs((leaf.grad() * direction).sum().item<double>() - expected);
            EXPECT_LE(difference, 1e-6 * (1 + std::abs(expected))) << name << " " << tensor;
        }
    }
}

}  // namespace refold
