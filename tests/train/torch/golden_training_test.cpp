// Ten training steps must match transformers with torch.optim.AdamW (tests/tools/make_training_golden.py).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/torch/model.h"
#include "model/load.h"
#include "train/torch/losses.h"
#include "train/torch/optimizer.h"

namespace refold {
namespace {

using nlohmann::json;

const std::string kFixtures = REFOLD_FIXTURES;

at::Tensor tokens_of(int64_t step, int64_t sequences, int64_t length, int64_t n_vocab) {
    const at::Tensor tokens = at::empty({sequences, length}, at::kLong);
    for (int64_t s = 0; s < sequences; ++s) {
        for (int64_t t = 0; t < length; ++t)
            tokens[s][t] = (step * 37 + s * 101 + t * t * 3 + t * 11) % n_vocab;
    }
    return tokens;
}

void expect_close(double found, double expected, double relative, const std::string& what) {
    EXPECT_NEAR(found, expected, relative * (1e-3 + std::abs(expected))) << what;
}

void expect_values(const at::Tensor& x, const json& expected, double relative, const std::string& what) {
    const at::Tensor flat = x.detach().contiguous().view({-1});
    const double scale = flat.abs().max().item<double>();
    for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), expected[i].get<double>(), relative * scale)
            << what << " " << i;
    }
}

class GoldenTraining : public testing::TestWithParam<bool> {};

TEST_P(GoldenTraining, IsTransformers) {
    std::ifstream file(kFixtures + "/training/golden.json");
    const json golden = json::parse(file);
    const Model model = load_model(kFixtures + "/" + golden["model"].get<std::string>());
    TorchModel torch(model, true);
    torch.set_execution({false, GetParam()});
    TrainOptions options;
    const json& given = golden["options"];
    options.learning_rate = given["learning_rate"];
    options.beta1 = given["beta1"];
    options.beta2 = given["beta2"];
    options.epsilon = given["epsilon"];
    options.weight_decay = given["weight_decay"];
    Processes processes;
    Optimizer optimizer(torch.parameters(), options, processes);
    const int64_t sequences = golden["sequences"], context = golden["context"];
    int64_t step = 0;
    for (const json& expected : golden["steps"]) {
        const std::string where = "step " + std::to_string(step);
        const at::Tensor tokens = tokens_of(step++, sequences, context + 1, model.config.n_vocab);
        const at::Tensor targets = tokens.narrow(1, 1, context).reshape({-1});
        const auto loss = cross_entropy([&](const at::Tensor& x) { return torch.logits(x); },
                                        torch.hidden(tokens.narrow(1, 0, context).contiguous()).final,
                                        targets, at::ones_like(targets, at::kBool), 16);
        EXPECT_EQ(loss.count, sequences * context);
        (loss.sum / static_cast<double>(loss.count)).backward();
        expect_close(loss.sum.item<double>() / static_cast<double>(loss.count), expected["loss"], 1e-5,
                     where);
        if (expected.contains("gradient_norms")) {
            EXPECT_EQ(expected["gradient_norms"].size(), torch.parameters().size());
            for (const auto& [name, norm] : expected["gradient_norms"].items()) {
                const at::Tensor& leaf = torch.parameters().at(name + ".weight");
                expect_close(leaf.grad().norm().item<double>(), norm, 1e-3, where + " " + name);
            }
            for (const auto& [name, values] : expected["gradients"].items())
                expect_values(torch.parameters().at(name + ".weight").grad(), values, 1e-3,
                              where + " " + name);
        }
        const double norm = optimizer.gradient_norm(), clip = given["clip"];
        expect_close(norm, expected["gradient_norm"], 1e-3, where);
        optimizer.step(options.learning_rate, std::min(1.0, clip / norm));
        optimizer.zero_gradients();
    }
    EXPECT_EQ(step, 10);
    for (const auto& [name, values] : golden["weights"].items())
        expect_values(torch.parameters().at(name + ".weight"), values, 1e-3, name);
}

INSTANTIATE_TEST_SUITE_P(Recomputed, GoldenTraining, testing::Bool());

}  // namespace
}  // namespace refold
