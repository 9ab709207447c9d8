#include "train/torch/range_fit.h"

#include <ATen/ATen.h>

#include <cmath>

#include "compress/calibrated.h"
#include "engine/torch/model.h"
#include "model/materialize.h"

namespace refold {
namespace {

constexpr SmallShape kFour{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 24, .vocab = 24};
constexpr size_t kSequences = 6;
constexpr int64_t kTokens = 10;

using Residuals = std::vector<std::vector<float>>;

Residuals random_streams(uint32_t seed) {
    Residuals out(kSequences);
    for (size_t s = 0; s < kSequences; ++s) {
        for (int64_t i = 0; i < kTokens * kFour.embd; ++i)
            out[s].push_back(scattered(seed + s, Slot::attn_q, i, static_cast<int64_t>(seed)));
    }
    return out;
}

// The residual streams after these layers.
Residuals outputs_of(const Model& model, LayerRange range, const Residuals& before) {
    const at::NoGradGuard guard;
    const TorchModel torch(model, false, at::kFloat, FactoredExecution::automatic, range);
    Residuals out;
    for (std::vector<float> rows : before) {
        const at::Tensor y =
            torch.range(at::from_blob(rows.data(), {1, kTokens, kFour.embd}, at::kFloat)).contiguous();
        out.emplace_back(y.data_ptr<float>(), y.data_ptr<float>() + y.numel());
    }
    return out;
}

// The model with tensor `name` multiplied by factors around 1.
Model perturbed(Model model, const std::string& name, float by) {
    std::vector<float> values = floats_of(model, name);
    for (size_t i = 0; i < values.size(); ++i) values[i] *= 1 + by * scattered(i, Slot::ffn_up, 3, 5);
    model.tensors[name] = float_tensor(model.tensor(name).shape, values);
    return model;
}

// Fits layers `ranges` of `changed` to the outputs of the same layers of `original`.
struct Problem {
    Problem(const Model& original, const Model& changed, const std::vector<LayerRange>& ranges)
        : model(changed) {
        for (const LayerRange range : ranges) {
            inputs.push_back(random_streams(static_cast<uint32_t>(range.first) + 1));
            targets.push_back(outputs_of(original, range, inputs.back()));
        }
        for (size_t i = 0; i < ranges.size(); ++i) {
            const auto views = [](const Residuals& all) { return Streams(all.begin(), all.end()); };
            places.push_back({ranges[i], views(inputs[i]), views(targets[i])});
        }
    }
    RangeFitRequest request(std::map<std::string, std::vector<FrozenPart>> tensors) const {
        TrainOptions options;
        options.steps = 200;
        options.batch = 4;
        options.learning_rate = 0.02;
        options.final_rate = 0;
        return {.model = model,
                .places = places,
                .held_out = kSequences - 2,
                .tensors = std::move(tensors),
                .options = options,
                .threads = 1};
    }

    Model model;
    std::vector<Residuals> inputs, targets;
    std::vector<FitPlace> places;
};

Model original_model() { return small_model(kFour, scattered_small); }

TEST(RangeFit, RecoversAPerturbedNorm) {
    const Model original = original_model();
    const std::string norm = tensor_of(original, 1, Slot::ffn_norm);
    const Problem problem(original, perturbed(original, norm, 0.3F), {{1, 2}});
    const RangeFitResult result = fit_by_gradients(problem.request({{norm, {}}}));
    EXPECT_GT(result.held_out_before, 1e-4);
    EXPECT_LT(result.held_out_after, 1e-4 * result.held_out_before);
    EXPECT_LT(largest_difference(result.tensors.at(norm), floats_of(original, norm)), 0.01);
    EXPECT_EQ(result.steps, 200);
}

TEST(RangeFit, LeavesFrozenPartsAndOtherTensorsAlone) {
    const Model original = original_model();
    const std::string q = tensor_of(original, 2, Slot::attn_q), o = tensor_of(original, 2, Slot::attn_o);
    const Model changed = perturbed(perturbed(original, q, 0.5F), o, 0.5F);
    const Problem problem(original, changed, {{2, 3}});
    const RangeFitResult result =
        fit_by_gradients(problem.request({{q, {{false, 4, 8}}}, {o, {{true, 0, 4}, {true, 12, 4}}}}));
    EXPECT_LT(result.held_out_after, 0.95 * result.held_out_before);
    ASSERT_EQ(result.tensors.size(), 2U);
    const auto before_q = floats_of(changed, q), before_o = floats_of(changed, o);
    for (size_t i = 0; i < 256; ++i) {
        const size_t row = i / 16, column = i % 16;
        EXPECT_EQ(result.tensors.at(q)[i] == before_q[i], row >= 4 && row < 12) << row;
        EXPECT_EQ(result.tensors.at(o)[i] == before_o[i], column < 4 || column >= 12) << column;
    }
}

// A tensor that two places use gets the gradients of both and must fit both.
TEST(RangeFit, TensorsInCommonAreTrainedTogether) {
    const Model looped = planned(original_model(), {"recursive loops=2"}).model;
    const std::string norm = tensor_of(looped, 1, Slot::attn_norm);
    ASSERT_EQ(norm, tensor_of(looped, 3, Slot::attn_norm));
    const Problem problem(looped, perturbed(looped, norm, 0.3F), {{1, 2}, {3, 4}});
    const RangeFitResult both = fit_by_gradients(problem.request({{norm, {}}}));
    EXPECT_LT(both.held_out_after, 1e-4 * both.held_out_before);
    EXPECT_LT(largest_difference(both.tensors.at(norm), floats_of(looped, norm)), 0.01);

    // The first place has no error, the second one has: the best compromise lies between.
    const Model plus = perturbed(looped, norm, 0.3F);
    Problem opposed(plus, plus, {{1, 2}, {3, 4}});
    const Problem other(perturbed(looped, norm, -0.3F), plus, {{1, 2}, {3, 4}});
    opposed.places[1] = other.places[1];
    const RangeFitResult between = fit_by_gradients(opposed.request({{norm, {}}}));
    EXPECT_LT(between.held_out_after, 0.9 * between.held_out_before);
    EXPECT_GT(between.held_out_after, 1e-3 * between.held_out_before);
}

// The range includes earlier layers whose attention the trained layer uses.
TEST(RangeFit, OverARangeOfLayers) {
    const Model original = planned(original_model(), {"uniattn superblocks=1-2"}).model;
    const std::string v = tensor_of(original, 2, Slot::attn_v);
    const Problem problem(original, perturbed(original, v, 0.3F), {{1, 3}});
    const RangeFitResult result = fit_by_gradients(problem.request({{v, {}}}));
    EXPECT_LT(result.held_out_after, 0.1 * result.held_out_before);
}

TEST(RangeFit, KeepsWhatWasBetter) {
    const Model original = original_model();
    const std::string norm = tensor_of(original, 1, Slot::ffn_norm);
    const Problem problem(original, perturbed(original, norm, 1e-4F), {{1, 2}});
    auto request = problem.request({{norm, {}}});
    request.options.learning_rate = 3;
    request.options.patience = 2;
    const RangeFitResult result = fit_by_gradients(request);
    EXPECT_TRUE(result.tensors.empty());
    EXPECT_EQ(result.held_out_after, result.held_out_before);
    EXPECT_TRUE(result.stopped_early);
    EXPECT_EQ(result.steps, 40);  // two evaluations of ten
}

TEST(RangeFit, TheSameSeedGivesTheSameNumbers) {
    const Model original = original_model();
    const std::string norm = tensor_of(original, 1, Slot::ffn_norm);
    const Problem problem(original, perturbed(original, norm, 0.3F), {{1, 2}});
    auto request = problem.request({{norm, {}}});
    request.options.steps = 5;
    request.options.batch = 2;
    const RangeFitResult one = fit_by_gradients(request), again = fit_by_gradients(request);
    EXPECT_EQ(one.tensors, again.tensors);
    request.options.seed = 1;
    EXPECT_NE(fit_by_gradients(request).tensors, one.tensors);
    // The micro-batch size does not matter.
    request.options.seed = 0;
    request.options.micro_batch = 2;
    EXPECT_LT(largest_difference(fit_by_gradients(request).tensors.at(norm), one.tensors.at(norm)), 1e-5);
}

TEST(RangeFit, BadInputAndInterrupts) {
    const Model original = original_model();
    const std::string norm = tensor_of(original, 1, Slot::ffn_norm);
    Problem problem(original, perturbed(original, norm, 0.3F), {{1, 2}});
    auto request = problem.request({{norm, {}}});
    int64_t steps = 0;
    request.report = [&](int64_t step, double) { steps = step; };
    request.stop = [&] { return steps == 3; };
    expect_error(ErrorCode::interrupted, {}, [&] { fit_by_gradients(request); });
    problem.inputs[0][kSequences - 1][5] = INFINITY;
    expect_error(ErrorCode::input, {"layer 1", "not finite"}, [&] {
        fit_by_gradients(problem.request({{norm, {}}}));
    });
}

}  // namespace
}  // namespace refold
