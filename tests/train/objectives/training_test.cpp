// The training loop: learning, checkpoints, and resuming.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cmath>

#include "core/error_of.h"
#include "io/safetensors.h"
#include "model/materialize.h"
#include "train/alone.h"
#include "train/schedule.h"
#include "train/tiny_run.h"
#include "train/torch/checkpoint.h"
#include "train/torch/trainer.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(Training, LossFalls) {
    TinyRun run;
    run.options.steps = 40;
    const TrainResult result = run.run(alone);
    const auto losses = run.figures("loss");
    ASSERT_EQ(losses.size(), 40U);
    EXPECT_LT(losses.back(), losses.front() - 0.3);
    EXPECT_LT(result.held_out_after, result.held_out_before - 0.3);
    EXPECT_EQ(run.figures("held_out_loss").front(), result.held_out_before);
    EXPECT_EQ(result.tensors.size(), run.model.tensors.size());
}

TEST(Training, OnlyWhatIsNamedIsTrained) {
    TinyRun run;
    run.options.train = "norms,-output_norm.weight";
    const TrainResult result = run.run(alone);
    ASSERT_EQ(result.tensors.size(), 6U);
    for (const auto& [name, values] : result.tensors) {
        EXPECT_THAT(name, HasSubstr("_norm"));
        EXPECT_NE(values, floats_of(run.model, name)) << name;
    }
}

// The size of micro batches changes only rounding.
TEST(Training, MicroBatchesAddUp) {
    TinyRun whole, parts;
    whole.options.micro_batch = 4;
    parts.options.micro_batch = 3;
    const auto a = whole.run(alone), b = parts.run(alone);
    EXPECT_NEAR(a.loss, b.loss, 1e-5);
    for (const auto& [name, values] : a.tensors)
        for (size_t i = 0; i < values.size(); ++i)
            EXPECT_NEAR(values[i], b.tensors.at(name)[i], 1e-3) << name;
}

// Gradients accumulate in float32 whatever the type of products, so only the rounding of products differs.
TEST(Training, MicroBatchesInBfloat16AddUp) {
    TinyRun run;
    run.model = tiny_model(1.0F);
    const TrainData text = run.data();
    const TrainRequest request{run.model, nullptr, run.options, run.objective, text, "", ""};
    const auto objective = make_objective(request);
    const std::vector<int64_t> sequences = {0, 1, 2, 3, 4, 5, 6, 7};
    const auto gradients = [&](bool bf16, size_t micro) {
        TorchModel torch(run.model, true);
        torch.set_execution({bf16, false});
        for (size_t first = 0; first < sequences.size(); first += micro) {
            const auto part = std::span(sequences).subspan(first, micro);
            objective->loss(torch, make_batch(text, part, false, at::kCPU)).sum.backward();
        }
        std::vector<at::Tensor> all;
        for (const auto& [name, leaf] : torch.parameters()) {
            EXPECT_EQ(leaf.grad().scalar_type(), at::kFloat) << name;
            all.push_back(leaf.grad().reshape({-1}));
        }
        return at::cat(all);
    };
    const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a - b).norm() / b.norm()).item<double>();
    };
    const at::Tensor exact = gradients(false, 8), whole = gradients(true, 8);
    const double rounding = apart(whole, exact);
    EXPECT_GT(rounding, 1e-4);
    EXPECT_LT(rounding, 0.04);  // 2.3 % on CPUs without products of BF16
    for (const size_t micro : {1U, 2U, 4U}) {
        EXPECT_LT(apart(gradients(true, micro), whole), rounding) << micro;
        EXPECT_LT(apart(gradients(true, micro), exact), 1.5 * rounding) << micro;
    }
    // The same in the training loop, which divides by the step's tokens.
    TinyRun one, parts;
    one.options.type = parts.options.type = TrainType::bf16;
    one.options.micro_batch = 4;
    parts.options.micro_batch = 1;
    one.run(alone);
    parts.run(alone);
    const auto norms = one.figures("gradient_norm"), others = parts.figures("gradient_norm");
    EXPECT_NEAR(others[0], norms[0], 0.01 * norms[0]);
}

// ---- checkpoints ----

TEST(Checkpoints, AResumedRunIsTheSameBitForBit) {
    for (const int64_t patience : {0, 3}) {
        TinyRun whole, parts;
        whole.options.warmup = parts.options.warmup = 2;
        whole.options.patience = parts.options.patience = patience;
        const TrainResult expected = whole.run(alone);
        parts.stop_after = 3;
        EXPECT_THAT(error_of([&] { parts.run(alone); }, ErrorCode::interrupted), HasSubstr("after 3 of 6"));
        parts.stop_after = -1;
        const TrainResult result = parts.run(alone);
        EXPECT_EQ(result.tensors, expected.tensors);
        EXPECT_EQ(result.steps, expected.steps);
        EXPECT_EQ(result.loss, expected.loss);
        EXPECT_EQ(result.held_out_before, expected.held_out_before);
        EXPECT_EQ(result.held_out_after, expected.held_out_after);
        EXPECT_EQ(parts.figures("loss"), whole.figures("loss"));
        EXPECT_EQ(parts.figures("held_out_loss"), whole.figures("held_out_loss"));
        // A finished run is only read.
        const size_t told = parts.metrics.size();
        EXPECT_EQ(parts.run(alone).tensors, expected.tensors);
        EXPECT_EQ(parts.metrics.size(), told);
    }
}

TEST(Checkpoints, KeptModelsHaveTheWeightsOfTheirSteps) {
    TinyRun whole, parts;
    whole.options.keep = parts.options.keep = 3;
    const TrainResult expected = whole.run(alone);
    EXPECT_EQ(expected.kept, 3);
    ASSERT_EQ(whole.kept.size(), 3U);
    EXPECT_EQ(whole.kept.at(3), expected.tensors);
    // Interrupted while the second one is written.
    parts.interrupted_at = 2;
    EXPECT_THAT(error_of([&] { parts.run(alone); }, ErrorCode::interrupted), HasSubstr("after 4 of 6"));
    EXPECT_EQ(parts.kept.size(), 1U);
    const SafetensorsFile saved = read_safetensors(parts.folder / "run/checkpoint.safetensors");
    for (const auto& [name, values] : whole.kept.at(2)) {
        const auto bytes = std::as_bytes(std::span(values));
        EXPECT_TRUE(std::ranges::equal(saved.tensors.at("weights." + name).data, bytes)) << name;
    }
    parts.interrupted_at = 0;
    EXPECT_EQ(parts.run(alone).tensors, expected.tensors);
    EXPECT_EQ(parts.kept, whole.kept);
}

// After floor(i * steps / keep) steps.
TEST(Checkpoints, StepsOfKeptModels) {
    TrainOptions options;
    options.steps = 7;
    options.keep = 3;
    std::vector<int64_t> numbers;
    for (int64_t step = 0; step <= 7; ++step) numbers.push_back(kept_number(options, step));
    EXPECT_EQ(numbers, (std::vector<int64_t>{0, 0, 1, 0, 2, 0, 0, 3}));
    options.keep = 7;
    for (int64_t step = 0; step <= 7; ++step) EXPECT_EQ(kept_number(options, step), step);
}

TEST(Checkpoints, OfAnotherRunAreRefused) {
    TinyRun run;
    run.run(alone);
    run.identity = "model: tiny\ntext: words\n";
    EXPECT_THAT(error_of([&] { run.run(alone); }), testing::AllOf(HasSubstr("text (then letters, now words)"),
                                                                  testing::Not(HasSubstr("model"))));
}

TEST(Checkpoints, DamagedOnesAreRefused) {
    TinyRun run;
    run.stop_after = 2;
    error_of([&] { run.run(alone); }, ErrorCode::interrupted);
    const std::string path = run.folder / "run/checkpoint.safetensors";
    const std::string good = read_all(path);
    for (const std::string& bad : {good.substr(0, good.size() - 8), good.substr(0, 100), std::string()}) {
        write_all(path, bad);
        EXPECT_THAT(error_of([&] { run.run(alone); }), HasSubstr("checkpoint.safetensors"));
    }
}

// A limit on the file size acts like a full disk.
TEST(Checkpoints, AFullDiskKeepsTheOldOne) {
    TinyRun run;
    run.stop_after = 2;
    error_of([&] { run.run(alone); }, ErrorCode::interrupted);
    const std::string before = read_all(run.folder / "run/checkpoint.safetensors");
    run.stop_after = 2;
    const auto handler = signal(SIGXFSZ, SIG_IGN);
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    const rlimit small{2000, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::string message = error_of([&] { run.run(alone); }, ErrorCode::io);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    EXPECT_THAT(message, HasSubstr("checkpoint.safetensors"));
    EXPECT_EQ(read_all(run.folder / "run/checkpoint.safetensors"), before);
}

// ---- the end of a run ----

TEST(Training, DivergenceStopsAndKeepsTheLastState) {
    const auto message = [](double learning_rate) {
        TinyRun run;
        run.options.train = "output_norm.weight";
        run.options.learning_rate = learning_rate;
        run.options.clip = 0;
        run.options.save_every = 1;
        const std::string what = error_of([&] { run.run(alone); });
        EXPECT_THAT(what,
                    testing::AllOf(HasSubstr("training has failed"), HasSubstr("a smaller learning_rate"),
                                   HasSubstr("checkpoint.safetensors")));
        EXPECT_TRUE(read_safetensors(run.folder / "run/checkpoint.safetensors")
                        .tensors.contains("weights.output_norm.weight"));
        return what;
    };
    EXPECT_THAT(message(100), HasSubstr("the held-out loss is"));
    EXPECT_THAT(message(1e38), HasSubstr("nan"));
}

TEST(Training, NothingIsSavedOfARunThatFailsAtOnce) {
    TinyRun run;
    run.options.learning_rate = 1e38;
    EXPECT_THAT(error_of([&] { run.run(alone); }), HasSubstr("nothing was saved"));
}

TEST(Training, PatienceKeepsTheBestWeights) {
    TinyRun run;
    run.options.learning_rate = 1.0;  // too large: the loss soon grows
    run.options.steps = 60;
    run.options.evaluate_every = 1;
    run.options.patience = 3;
    const TrainResult result = run.run(alone);
    EXPECT_TRUE(result.stopped_early);
    const auto held_out = run.figures("held_out_loss");
    EXPECT_EQ(result.held_out_after, *std::min_element(held_out.begin(), held_out.end()));
    EXPECT_EQ(held_out.size(), static_cast<size_t>(result.steps) + 4);
    EXPECT_EQ(held_out[static_cast<size_t>(result.steps)], result.held_out_after);
    // The result has the weights with that loss.
    TinyRun again;
    again.options.steps = 1;
    for (const auto& [name, values] : result.tensors)
        again.model.tensors[name] = float_tensor(again.model.tensor(name).shape, values);
    EXPECT_NEAR(again.run(alone).held_out_before, result.held_out_after, 1e-6);
}

// Where the best weights are wanted, a run that diverges ends with them and without an error.
TEST(Training, TheBestWeightsOfARunThatDiverges) {
    for (const double rate : {30.0, 1e38}) {
        TinyRun run;
        run.options.learning_rate = rate;
        run.options.keep_best = true;
        run.options.evaluate_every = 1;
        const TrainResult result = run.run(alone);
        EXPECT_TRUE(result.stopped_early);
        EXPECT_EQ(result.steps, 0);
        EXPECT_EQ(result.held_out_after, result.held_out_before);
        for (const auto& [name, values] : result.tensors)
            EXPECT_EQ(values, floats_of(run.model, name)) << name;
        // The finished run is found again.
        EXPECT_EQ(run.run(alone).tensors, result.tensors);
    }
}

TEST(Training, OptionsThatDoNotFitAreRefused) {
    TinyRun run;
    run.options.objective = "uptrian";
    EXPECT_THAT(error_of([&] { run.run(alone); }, ErrorCode::usage), HasSubstr("did you mean 'uptrain'"));
    run.options.objective = "distill";
    EXPECT_THAT(error_of([&] { run.run(alone); }, ErrorCode::usage), HasSubstr("teacher"));
    run.options.objective = "postshare";
    EXPECT_THAT(error_of([&] { run.run(alone); }, ErrorCode::usage), HasSubstr("pairs"));
    run.options.objective = "uptrain";
    run.options.steps = 0;
    EXPECT_THAT(error_of([&] { run.run(alone); }, ErrorCode::usage), HasSubstr("steps"));
}

}  // namespace
}  // namespace refold
