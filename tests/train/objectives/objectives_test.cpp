// The losses of the training objectives.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/error_of.h"
#include "model/materialize.h"
#include "train/alone.h"
#include "train/tiny_run.h"
#include "train/torch/objectives/early_exit.h"
#include "train/torch/objectives/postshare.h"
#include "train/torch/trainer.h"

namespace refold {
namespace {

using testing::HasSubstr;

// ---- distill ----

TEST(Distill, ATeacherThatIsTheModelTeachesNothing) {
    TinyRun run;
    run.options.objective = "distill";
    run.objective["alpha"] = "1";
    run.teacher = &run.model;
    run.options.weight_decay = 0;
    run.run(alone);
    EXPECT_NEAR(run.figures("divergence").front(), 0, 1e-6);
    EXPECT_NEAR(run.figures("gradient_norm").front(), 0, 1e-5);
}

TEST(Distill, EveryDivergenceFalls) {
    const Model teacher = tiny_model(0.8F);
    for (const char* divergence : {"fkl", "rkl", "jsd", "tvd"}) {
        TinyRun run;
        run.options.objective = "distill";
        run.options.steps = 10;
        run.objective["alpha"] = "1";
        run.objective["divergence"] = divergence;
        run.teacher = &teacher;
        run.run(alone);
        const auto distance = run.figures("held_out_divergence");
        EXPECT_LT(distance.back(), 0.9 * distance.front()) << divergence;
    }
}

TEST(Distill, TheLossIsTheMixture) {
    const Model teacher = tiny_model(0.8F);
    TinyRun run;
    run.options.objective = "distill";
    run.objective["alpha"] = "0.3";
    run.teacher = &teacher;
    run.run(alone);
    const auto loss = run.figures("loss"), ce = run.figures("cross_entropy"), d = run.figures("divergence");
    for (size_t i = 0; i < loss.size(); ++i) EXPECT_NEAR(loss[i], 0.7 * ce[i] + 0.3 * d[i], 1e-5);
}

// With the whole vocabulary kept the cache equals the teacher. Records of an interrupted run are reused.
TEST(Distill, CachedLogitsAreTheTeachers) {
    const Model teacher = tiny_model(0.8F);
    TinyRun online, cached;
    for (TinyRun* run : {&online, &cached}) {
        run->options.objective = "distill";
        run->teacher = &teacher;
    }
    cached.objective["teacher_cache"] = "8";
    const TrainResult expected = online.run(alone), result = cached.run(alone);
    EXPECT_NEAR(result.loss, expected.loss, 1e-4);
    EXPECT_NEAR(result.held_out_before, expected.held_out_before, 1e-5);
    const auto caches = [&] {
        std::vector<std::string> paths;
        for (const auto& entry : std::filesystem::directory_iterator(cached.folder / "run"))
            if (entry.path().extension() == ".bin") paths.push_back(entry.path());
        return paths;
    };
    ASSERT_EQ(caches().size(), 1U);
    const std::string path = caches()[0], file = read_all(path);
    std::filesystem::remove(cached.folder / "run/checkpoint.safetensors");
    // A missing part is computed again with the same result.
    write_all(path, file.substr(0, file.size() - 100));
    EXPECT_EQ(cached.run(alone).tensors, result.tensors);
    EXPECT_EQ(caches().size(), 1U);
    EXPECT_EQ(read_all(path), file);
}

// Logits from a callback are used like those of the torch engine.
TEST(Distill, GivenLogitsAreTheTeachers) {
    const Model teacher = tiny_model(0.8F);
    const TorchModel torch(teacher, false);
    for (const char* cached : {"0", "8"}) {
        TinyRun own, given;
        for (TinyRun* run : {&own, &given}) {
            run->options.objective = "distill";
            run->objective["teacher_cache"] = cached;
            run->teacher = &teacher;
        }
        int64_t asked = 0;
        given.teacher_logits = [&](std::span<const int32_t> tokens) {
            ++asked;
            const at::NoGradGuard guard;
            const at::Tensor logits = torch.forward(tokens).logits.contiguous();
            return std::vector<float>(logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel());
        };
        const TrainResult expected = own.run(alone), result = given.run(alone);
        EXPECT_NEAR(result.loss, expected.loss, 1e-5);
        EXPECT_NEAR(result.held_out_after, expected.held_out_after, 1e-5);
        EXPECT_GT(asked, 0);
    }
}

TEST(Distill, AResumedRunReadsTheCache) {
    const Model teacher = tiny_model(0.8F);
    TinyRun run;
    run.options.objective = "distill";
    run.teacher = &teacher;
    run.objective["teacher_cache"] = "4";
    run.stop_after = 2;
    error_of([&] { run.run(alone); }, ErrorCode::interrupted);
    EXPECT_GT(run.prepared, 0);
    run.prepared = 0;
    run.stop_after = -1;
    run.run(alone);
    EXPECT_EQ(run.prepared, 0);
}

TEST(Distill, FewCachedTokensAreNear) {
    const Model teacher = tiny_model(1.5F);
    TinyRun online, cached;
    for (TinyRun* run : {&online, &cached}) {
        run->options.objective = "distill";
        run->objective["alpha"] = "1";
        run->teacher = &teacher;
    }
    cached.objective["teacher_cache"] = "6";
    const double all = online.run(alone).held_out_before, some = cached.run(alone).held_out_before;
    EXPECT_NE(all, some);
    EXPECT_NEAR(all, some, 0.2 * all);
}

// ---- early_exit ----

TEST(EarlyExit, ExitsAreLoopsOrNumbers) {
    Topology topology;
    topology.layers.resize(6);
    EXPECT_THAT(error_of([&] { exits_of(topology, "loops"); }, ErrorCode::usage), HasSubstr("exits=3"));
    topology.loops = 3;
    EXPECT_EQ(exits_of(topology, "loops"), (std::vector<size_t>{2, 4}));
    EXPECT_EQ(exits_of(topology, "1,5"), (std::vector<size_t>{1, 5}));
    for (const char* bad : {"", "0", "6", "3,2", "2,2", "2,", "two", "2;3", "-1", "99999999999999999999999"})
        EXPECT_THAT(error_of([&] { exits_of(topology, bad); }, ErrorCode::usage), HasSubstr("1 to 5")) << bad;
}

TEST(EarlyExit, CoefficientsOfThePaper) {
    for (const bool weighted : {false, true}) {
        TinyRun run;
        run.options.objective = "early_exit";
        run.objective["exits"] = "1,2";
        run.objective["exit_target"] = "ce";
        if (weighted) run.objective["coefficients"] = "weighted";
        run.run(alone);
        const auto loss = run.figures("loss"), last = run.figures("cross_entropy"),
                   first = run.figures("exit_1_cross_entropy"), second = run.figures("exit_2_cross_entropy");
        ASSERT_EQ(first.size(), loss.size());
        for (size_t i = 0; i < loss.size(); ++i) {
            const double expected = weighted ? (first[i] + 2 * second[i] + 3 * last[i]) / 6
                                             : 0.1 * (first[i] + second[i]) + last[i];
            EXPECT_NEAR(loss[i], expected, 1e-5);
        }
    }
}

TEST(EarlyExit, ExitsLearn) {
    for (const char* target : {"ce", "kd", "ce+kd"}) {
        TinyRun run;
        run.options.objective = "early_exit";
        run.options.steps = 20;
        run.objective["exit_target"] = target;
        run.objective["coefficient"] = "0.3";
        run.run(alone);
        const auto exit = run.figures("held_out_exit_1_cross_entropy");
        EXPECT_LT(exit.back(), exit.front() - 0.1) << target;
    }
}

// The final output's distribution is a fixed target: distillation must not move it towards the exit's.
TEST(EarlyExit, TheFinalOutputIsNotPulled) {
    TinyRun with, without;
    for (TinyRun* run : {&with, &without}) {
        run->options.objective = "early_exit";
        run->options.steps = 1;
        run->objective["exits"] = "2";
        run->objective["exit_target"] = "kd";
        run->options.train = "blk.2.*";  // after the exit
        run->options.clip = 0;
    }
    without.objective["coefficient"] = "0";
    EXPECT_EQ(with.run(alone).tensors, without.run(alone).tensors);
}

// Trains the two tensors of an exit alone: its loss falls by at least `gain`, the final loss stays.
void expect_only_the_exit_learns(TinyRun& run, double gain) {
    run.options.objective = "early_exit";
    run.options.train = "exit";
    run.options.steps = 40;
    run.options.learning_rate = 1e-2;
    run.objective["exits"] = "loops";
    const auto tensors = run.run(alone).tensors;
    const auto exit = run.figures("held_out_exit_1_cross_entropy"),
               final = run.figures("held_out_cross_entropy");
    EXPECT_LT(exit.back(), exit.front() - gain);
    EXPECT_EQ(final.back(), final.front());
    EXPECT_EQ(tensors.size(), 2U);
}

// Training only exit maps changes the exits, but not the result of all loops.
TEST(EarlyExit, MapsAlone) {
    TinyRun run;
    run.model = tiny_model(0.3F, 2);
    run.model.topology.loops = 2;
    const int64_t n = run.model.config.n_embd;
    run.model.tensors["u"] = float_tensor({2, n}, std::vector<float>(static_cast<size_t>(2 * n), 0.0F));
    run.model.tensors["v"] = float_tensor({n, 2}, {1, 2, -3, 4, 4, -3, 2, 1});
    run.model.topology.layers[0][Slot::exit_map] = LowRank{"u", "v"};
    expect_only_the_exit_learns(run, 0.05);
}

// A LoRA of the output layer for exits: the same.
TEST(EarlyExit, LoraOfTheOutputAlone) {
    TinyRun run;
    run.model = tiny_model(0.3F, 2);
    run.model.topology.loops = 2;
    const int64_t n = run.model.config.n_embd, vocab = run.model.config.n_vocab;
    run.model.tensors["u"] =
        float_tensor({2, vocab}, std::vector<float>(static_cast<size_t>(2 * vocab), 0.0F));
    run.model.tensors["v"] = float_tensor({n, 2}, {1, 2, -3, 4, 4, -3, 2, 1});
    run.model.topology.layers[0][Slot::exit_output] = LowRank{"u", "v"};
    expect_only_the_exit_learns(run, 0.01);
}

// ---- postshare ----

HeadPair pair_of(size_t later, int64_t head, size_t former, int64_t other) {
    HeadPair pair;
    const char* names[] = {"attn_q", "attn_k", "attn_v"};
    for (size_t s = 0; s < 3; ++s) {
        pair.qkv[s].later = {{fmt::format("blk.{}.{}.weight", later, names[s]), head * 2, 2}};
        pair.qkv[s].former = {{fmt::format("blk.{}.{}.weight", former, names[s]), other * 2, 2}};
    }
    return pair;
}

double distance(const std::vector<HeadPair>& pairs,
                const std::map<std::string, std::vector<float>>& tensors) {
    double sum = 0;
    for (const HeadPair& pair : pairs) {
        for (const auto& [later, former] : pair.qkv) {
            double squares = 0;
            for (size_t i = 0; i < 8; ++i) {  // two rows of four
                const double x = tensors.at(later[0].tensor)[static_cast<size_t>(later[0].first) * 4 + i] -
                                 tensors.at(former[0].tensor)[static_cast<size_t>(former[0].first) * 4 + i];
                squares += x * x;
            }
            sum += std::sqrt(squares);
        }
    }
    return sum / static_cast<double>(pairs.size());
}

TEST(PostShare, ThePenaltyIsEquation4AndTheHeadsMeet) {
    TinyRun run;
    run.options.objective = "postshare";
    run.options.steps = 40;
    run.options.clip = 0;
    run.pairs = {pair_of(1, 0, 0, 1), pair_of(2, 1, 1, 0)};
    std::map<std::string, std::vector<float>> before;
    for (const auto& [name, tensor] : run.model.tensors) before[name] = floats_of(run.model, name);
    const TrainResult result = run.run(alone);
    const auto penalty = run.figures("penalty"), loss = run.figures("loss"),
               ce = run.figures("cross_entropy");
    EXPECT_NEAR(penalty.front(), 0.5 * distance(run.pairs, before), 1e-5);
    EXPECT_NEAR(loss.front(), ce.front() + penalty.front(), 1e-5);
    EXPECT_LT(distance(run.pairs, result.tensors), 0.5 * distance(run.pairs, before));
}

TEST(PostShare, TheAuthorsWeighting) {
    TinyRun run;
    run.options.objective = "postshare";
    run.objective["weighting"] = "authors";
    run.objective["gamma"] = "7";
    run.pairs = {pair_of(1, 0, 0, 1)};
    run.run(alone);
    EXPECT_NEAR(run.figures("loss").front(),
                0.5 * run.figures("cross_entropy").front() + run.figures("penalty").front(), 1e-5);
}

}  // namespace
}  // namespace refold
