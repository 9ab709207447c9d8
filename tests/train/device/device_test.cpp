// Training on another device than the CPU, which fake_device.h stands in for: which tensors are where.
#include "engine/torch/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"
#include "engine/all_models.h"
#include "engine/fake_device.h"
#include "engine/torch/ops.h"
#include "train/alone.h"
#include "train/several.h"
#include "train/tiny_run.h"
#include "train/torch/importance.h"
#include "train/torch/range_fit.h"

namespace refold {
namespace {

using testing::HasSubstr;
using Tensors = std::map<std::string, std::vector<float>>;

void expect_near(const Tensors& found, const Tensors& expected, double tolerance, const std::string& what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    for (const auto& [name, values] : expected)
        for (size_t i = 0; i < values.size(); ++i)
            EXPECT_NEAR(found.at(name)[i], values[i], tolerance) << what << " " << name;
}

TEST(Device, NamesAndWhatIsMissing) {
    EXPECT_EQ(device_of("cpu", 7), at::Device(at::kCPU));
    EXPECT_EQ(device_of(fake_device::kName, 2), fake_device::kDevice);
    EXPECT_EQ(device_of("privateuseone", 2), at::Device(at::kPrivateUse1, 2));
    EXPECT_THAT(error_of([] { device_of("gpu"); }, ErrorCode::usage),
                testing::AllOf(HasSubstr("'gpu'"), HasSubstr("cuda")));
    if (at::hasCUDA()) {
        EXPECT_EQ(device_of("auto"), at::Device(at::kCUDA, 0));
        EXPECT_THAT(error_of([] { device_of("cuda", 1000); }, ErrorCode::usage), HasSubstr("LOCAL_RANK"));
    } else {
        EXPECT_EQ(device_of("auto"), at::Device(at::kCPU));
        EXPECT_THAT(error_of([] { device_of("cuda"); }, ErrorCode::unsupported),
                    testing::AllOf(HasSubstr("no CUDA device"), HasSubstr("scripts/build-cuda")));
    }
}

// Of several processes of a machine each has the device with its number there.
TEST(Device, EveryProcessHasItsOwn) {
    const std::vector<std::pair<const char*, const char*>> variables = {
        {"WORLD_SIZE", "4"}, {"RANK", "3"}, {"LOCAL_RANK", "1"}};
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    const Model model = tiny_model();
    const std::vector<int32_t> tokens = {1, 2, 3};
    std::vector<std::vector<float>> logits;
    for (const char* device : {"cpu", "privateuseone"}) {
        for (auto& count : fake_device::made) count = 0;
        SingleSequence sequence(model, {.kind = EngineKind::torch, .threads = 1, .device = device});
        const auto last = sequence.evaluate(tokens);
        logits.emplace_back(last.begin(), last.end());
    }
    EXPECT_GT(fake_device::made[1], 10);
    EXPECT_EQ(fake_device::made[0] + fake_device::made[2] + fake_device::made[3], 0);
    for (size_t i = 0; i < logits[0].size(); ++i) EXPECT_NEAR(logits[1][i], logits[0][i], 1e-5);
    EXPECT_EQ(local_rank(), 1);
    for (const auto& [name, value] : variables) unsetenv(name);
    EXPECT_EQ(local_rank(), 0);
}

// The fake device is as strict as a real device.
TEST(Device, TheFakeOneRefusesTensorsOfTheCpu) {
    const at::Tensor here = at::ones({2, 3}).to(fake_device::kDevice), there = at::ones({2, 3});
    EXPECT_TRUE(at::equal((here + here * 2.0).cpu(), 3 * there));
    EXPECT_THROW(here + there, c10::Error);
    EXPECT_THROW(at::cat({here, there}), c10::Error);
    EXPECT_THROW(here.index_select(0, at::zeros({1}, at::kLong)), c10::Error);
}

// Hidden states, exits, logits and gradients of every leaf.
TEST(Device, EveryForwardPassRunsThere) {
    for (const auto& [name, model] : all_cases()) {
        const at::Tensor tokens = batch_of(model.config, 2, 6);
        std::map<std::string, at::Tensor> expected;
        for (const at::Device device : {at::Device(at::kCPU), fake_device::kDevice}) {
            TorchModel torch(model, true, at::TensorOptions(at::kDouble).device(device));
            torch.set_execution({false, true});
            const auto hidden = torch.hidden(tokens.to(device), std::vector<size_t>{1});
            at::Tensor loss = hidden.final.square().sum() + hidden.exits[0].square().sum();
            if (model.topology.globals.contains(Slot::output))
                loss = loss + torch.logits(hidden.final).square().sum();
            loss.backward();
            for (const auto& [tensor, leaf] : torch.parameters()) {
                ASSERT_EQ(leaf.device(), device);
                if (!leaf.grad().defined()) continue;
                const at::Tensor gradient = leaf.grad().cpu();
                if (device.is_cpu()) {
                    expected[tensor] = gradient;
                } else {
                    EXPECT_TRUE(at::allclose(gradient, expected.at(tensor))) << name << " " << tensor;
                }
            }
        }
    }
}

TEST(Device, AStepWithACacheRunsThere) {
    for (const auto& [name, model] : all_cases()) {
        if (!model.config.causal || !model.topology.globals.contains(Slot::output)) continue;
        std::vector<at::Tensor> logits;
        for (const at::Device device : {at::Device(at::kCPU), fake_device::kDevice}) {
            const at::NoGradGuard guard;
            const TorchWeights weights(model, at::TensorOptions(at::kFloat).device(device), false);
            TorchCache cache(model.config, weights.n_layer(), 16, device);
            const std::vector<int32_t> tokens = {1, 2, 3}, positions = {4, 5, 6};
            for (const int64_t past : {0, 3}) {
                const ForwardInput input{tokens, positions, {}, {}, past, 1, past + 3};
                logits.push_back(
                    torch_forward(model.config, weights, torch_step(input, device), &cache).logits->cpu());
            }
        }
        EXPECT_TRUE(at::allclose(logits[2], logits[0], 1e-4, 1e-5)) << name;
        EXPECT_TRUE(at::allclose(logits[3], logits[1], 1e-4, 1e-5)) << name;
    }
}

HeadPair first_heads() {
    HeadPair pair;
    const char* names[] = {"attn_q", "attn_k", "attn_v"};
    for (size_t s = 0; s < 3; ++s)
        pair.qkv[s] = {{{fmt::format("blk.1.{}.weight", names[s]), 0, 2}},
                       {{fmt::format("blk.0.{}.weight", names[s]), 0, 2}}};
    return pair;
}

// Batches, losses, penalties, clipping, optimizer, held-out text and the best weights.
TEST(Device, EveryObjectiveTrainsThere) {
    const Model teacher = tiny_model(0.8F);
    for (const std::string objective : {"uptrain", "distill", "distill cached", "early_exit", "postshare"}) {
        for (const auto& [bf16, rounded] :
             {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
            const auto result = [&, bf16 = bf16, rounded = rounded](const char* device) {
                TinyRun run;
                run.options.objective = objective.substr(0, objective.find(' '));
                run.options.device = device;
                run.options.steps = 3;
                run.options.evaluate_every = 1;
                run.options.type = bf16 ? TrainType::bf16 : TrainType::f32;
                run.options.checkpointing = bf16;
                run.options.weights = rounded ? TrainType::bf16 : TrainType::f32;
                run.options.clip = 0.1;
                run.options.weight_decay = 0.1;
                run.options.patience = 3;
                run.teacher = &teacher;
                run.pairs = {first_heads()};
                if (objective.ends_with("cached")) run.objective["teacher_cache"] = "4";
                TrainResult out = run.run(alone);
                EXPECT_EQ(out.device, device);
                return out;
            };
            const TrainResult cpu = result("cpu"), there = result(fake_device::kName);
            const double tolerance = bf16 ? 2e-2 : 1e-4;
            EXPECT_NEAR(there.loss, cpu.loss, tolerance) << objective;
            EXPECT_NEAR(there.held_out_after, cpu.held_out_after, tolerance) << objective;
            if (!bf16) expect_near(there.tensors, cpu.tensors, 2e-3, objective);
        }
    }
}

TEST(Device, CheckpointsGoThereAndBack) {
    TinyRun whole, parts, moved;
    for (TinyRun* run : {&whole, &parts, &moved}) {
        run->options.device = fake_device::kName;
        run->options.patience = 3;
    }
    const TrainResult expected = whole.run(alone);
    for (TinyRun* run : {&parts, &moved}) {
        run->stop_after = 3;
        EXPECT_THAT(error_of([&] { run->run(alone); }, ErrorCode::interrupted), HasSubstr("after 3 of 6"));
        run->stop_after = -1;
    }
    EXPECT_EQ(parts.run(alone).tensors, expected.tensors);
    moved.options.device = "cpu";
    expect_near(moved.run(alone).tensors, expected.tensors, 1e-3, "moved to the CPU");
}

#ifndef USE_C10D_NCCL
TEST(Device, WithoutNcclSeveralProcessesSaySo) {
    in_processes(2, [](Processes& processes) {
        at::Tensor x = at::ones({3}).to(fake_device::kDevice);
        EXPECT_THAT(error_of([&] { processes.sum(x); }, ErrorCode::unsupported), HasSubstr("NCCL"));
    });
}
#endif

TEST(Device, ImportanceIsComputedThere) {
    const Model model = tiny_model();
    const std::vector<std::vector<int32_t>> sequences = {{1, 2, 3, 4, 5}, {3, 1, 4, 1, 5}};
    for (const Taylor taylor : {Taylor::element1, Taylor::mix}) {
        ImportanceRequest request{.model = model, .sequences = sequences, .taylor = taylor, .tensors = {}};
        request.tensors = {{"blk.1.attn_q.weight", false}, {"blk.0.ffn_down.weight", true}};
        request.threads = 1;
        request.device = "cpu";
        const Importance expected = importance_by_gradients(request);
        request.device = fake_device::kName;
        expect_near(importance_by_gradients(request), expected, 1e-5, "importance");
    }
}

TEST(Device, PositionsAreFittedThere) {
    const Model model = tiny_model();
    const int64_t width = model.config.n_embd;
    std::vector<std::vector<float>> values(4);
    for (size_t s = 0; s < 4; ++s)
        for (int64_t i = 0; i < 5 * width; ++i) values[s].push_back(scattered(s, Slot::attn_q, i, 1));
    const Streams streams(values.begin(), values.end());
    const std::vector<FitPlace> places = {{{0, 1}, streams, streams}, {{1, 2}, streams, streams}};
    TrainOptions options;
    options.steps = 10;
    options.batch = 3;
    options.learning_rate = 0.01;
    options.device = "cpu";
    RangeFitRequest request{
        .model = model,
        .places = places,
        .held_out = 3,
        .tensors = {{"blk.0.attn_q.weight", {{false, 0, 2}}}, {"blk.1.ffn_norm.weight", {}}},
        .options = options};
    request.threads = 1;
    const RangeFitResult expected = fit_by_gradients(request);
    EXPECT_LT(expected.held_out_after, expected.held_out_before);
    request.options.device = fake_device::kName;
    const RangeFitResult there = fit_by_gradients(request);
    EXPECT_NEAR(there.held_out_after, expected.held_out_after, 1e-5);
    expect_near(there.tensors, expected.tensors, 1e-3, "layerwise");
}

}  // namespace
}  // namespace refold
