// The training loop in several processes: the same run as in one, whatever they divide among themselves, and
// resumed by more or fewer of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "core/error_of.h"
#include "model/materialize.h"
#include "train/alone.h"
#include "train/several.h"
#include "train/tiny_run.h"

namespace refold {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The runs of up to four processes, of which only the first one's folder is used.
struct ManyRuns {
    std::array<TinyRun, 4> runs;

    TinyRun& first() { return runs[0]; }
    void set(const std::function<void(TinyRun&)>& change) {
        for (TinyRun& run : runs) change(run);
    }
    // The messages of those that fail; results[rank] of the others.
    std::vector<std::string> run(int processes) {
        results.assign(runs.size(), {});
        const auto errors = errors_in(rendezvous_of_all(processes), [&](const Rendezvous& rendezvous) {
            Processes group(rendezvous);
            const auto rank = static_cast<size_t>(rendezvous.rank);
            results[rank] =
                runs[rank].run([&](const TrainRequest& request) { return train_by_steps(request, group); });
        });
        std::vector<std::string> messages;
        for (const auto& error : errors) {
            if (!error) continue;
            messages.push_back(error_of([&] { std::rethrow_exception(error); }, code));
        }
        return messages;
    }

    std::vector<TrainResult> results;
    ErrorCode code = ErrorCode::interrupted;  // of run()'s errors
};

// How weights and gradients are held.
struct Layout {
    TrainType weights = TrainType::f32;
    int zero = 1;
    double tolerance = 1e-5;  // of losses, and a hundredfold of weights
};
// A weight's rounding to BF16 may differ where masters differ in the last bit.
constexpr Layout kLayouts[] = {
    {TrainType::f32, 1, 1e-5}, {TrainType::f32, 2, 1e-5}, {TrainType::bf16, 2, 2e-3}};

void set(TinyRun& run, const Layout& layout) {
    run.options.weights = layout.weights;
    run.options.zero = layout.zero;
    run.options.batch = 6;
    run.options.patience = 4;  // keeps the best weights
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << i;
}

void expect_near(const TensorValues& found, const TensorValues& expected, double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, values] : expected)
        for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(found.at(name)[i], values[i], tolerance) << name << " " << i;
}

TEST(ManyProcesses, AreOne) {
    for (const Layout& layout : kLayouts) {
        TinyRun whole;
        set(whole, layout);
        const TrainResult expected = whole.run(alone);
        EXPECT_LT(expected.held_out_after, expected.held_out_before - 0.1);
        for (const int size : {2, 3}) {
            ManyRuns many;
            many.set([&](TinyRun& run) { set(run, layout); });
            EXPECT_THAT(many.run(size), testing::IsEmpty());
            expect_near(many.first().figures("loss"), whole.figures("loss"), layout.tolerance);
            expect_near(many.first().figures("gradient_norm"), whole.figures("gradient_norm"),
                        10 * layout.tolerance);
            expect_near(many.first().figures("held_out_loss"), whole.figures("held_out_loss"),
                        layout.tolerance);
            for (int rank = 0; rank < size; ++rank)
                EXPECT_EQ(many.results[static_cast<size_t>(rank)].tensors, many.results[0].tensors);
            expect_near(many.results[0].tensors, expected.tensors, 100 * layout.tolerance);
        }
    }
}

// Where sums have two parts, their order does not matter.
TEST(ManyProcesses, StagesAreTheSameBitForBit) {
    ManyRuns first, second;
    for (ManyRuns* runs : {&first, &second}) runs->set([](TinyRun& run) { run.options.steps = 3; });
    second.set([](TinyRun& run) { run.options.zero = 2; });
    first.run(2);
    second.run(2);
    EXPECT_EQ(second.first().figures("loss"), first.first().figures("loss"));
    EXPECT_EQ(second.results[0].tensors, first.results[0].tensors);
}

TEST(ManyProcesses, GoOnAsMoreOrFewer) {
    const std::vector<std::pair<int, int>> changes[] = {{{2, 1}}, {{1, 3}}, {{2, 1}, {1, 3}, {4, 2}}};
    for (size_t l = 0; l < std::size(kLayouts); ++l) {
        const Layout& layout = kLayouts[l];
        TinyRun whole;
        set(whole, layout);
        const TrainResult expected = whole.run(alone);
        for (const auto& [before, after] : changes[l]) {
            ManyRuns many;
            many.set([&](TinyRun& run) { set(run, layout); });
            many.first().stop_after = 3;
            EXPECT_THAT(many.run(before), testing::SizeIs(before));
            many.first().stop_after = -1;
            EXPECT_THAT(many.run(after), testing::IsEmpty());
            expect_near(many.first().figures("loss"), whole.figures("loss"), layout.tolerance);
            expect_near(many.first().figures("held_out_loss"), whole.figures("held_out_loss"),
                        layout.tolerance);
            expect_near(many.results[0].tensors, expected.tensors, 100 * layout.tolerance);
            // A finished run is only read, by any number.
            EXPECT_THAT(many.run(3 - after / 2), testing::IsEmpty());
            expect_near(many.results[0].tensors, expected.tensors, 100 * layout.tolerance);
            EXPECT_EQ(many.first().figures("loss").size(), 6U);
        }
    }
}

// A run of as many processes as before gives the same bits.
TEST(ManyProcesses, AResumedRunIsTheSameBitForBit) {
    for (const Layout& layout : {kLayouts[0], kLayouts[2]}) {
        ManyRuns whole, parts;
        for (ManyRuns* runs : {&whole, &parts}) runs->set([&](TinyRun& run) { set(run, layout); });
        EXPECT_THAT(whole.run(3), testing::IsEmpty());
        parts.first().stop_after = 2;
        EXPECT_THAT(parts.run(3), testing::SizeIs(3));
        parts.first().stop_after = -1;
        EXPECT_THAT(parts.run(3), testing::IsEmpty());
        EXPECT_EQ(parts.results[0].tensors, whole.results[0].tensors);
        EXPECT_EQ(parts.first().figures("loss"), whole.first().figures("loss"));
    }
}

// What a plan says, and what a run then has. Weights and the optimizer's state are known exactly.
TEST(ManyProcesses, MemoryIsAsExpected) {
    for (const Layout& layout : kLayouts) {
        for (const int size : {1, 3}) {
            ManyRuns many;
            many.set([&](TinyRun& run) {
                set(run, layout);
                run.options.train = "all,-token_embd.weight";
            });
            many.run(size);
            const TinyRun& run = many.first();
            const TrainSizes sizes = train_sizes(run.model, run.options.train);
            EXPECT_GT(sizes.frozen_matrices, 0);
            EXPECT_GT(sizes.trained_vectors, 0);
            const TrainMemory expected = expected_memory(sizes, run.options, size),
                              found = many.results[0].memory;
            EXPECT_EQ(found.weights, expected.weights);
            EXPECT_EQ(found.optimizer, expected.optimizer);
            EXPECT_LE(found.gradients, expected.gradients);
            EXPECT_GT(found.gradients, 0);
            const uint64_t share =
                (sizes.trained() + static_cast<uint64_t>(size) - 1) / static_cast<uint64_t>(size);
            // m, v, the best weights, and the master weights.
            EXPECT_EQ(found.optimizer, share * (layout.weights == TrainType::bf16 ? 16 : 12));
        }
    }
}

// Processes of one machine share a folder, in which each keeps what the teacher says of its sequences.
TEST(ManyProcesses, HaveTheirOwnCachesOfATeacher) {
    const Model teacher = tiny_model(0.8F);
    const auto distill = [&](TinyRun& run) {
        run.options.objective = "distill";
        run.objective["teacher_cache"] = "8";
        run.teacher = &teacher;
    };
    TinyRun whole;
    distill(whole);
    const TrainResult expected = whole.run(alone);
    ManyRuns many;
    many.set(distill);
    for (TinyRun& run : many.runs) run.shared_folder = many.first().folder / "run";
    EXPECT_THAT(many.run(3), testing::IsEmpty());
    expect_near(many.first().figures("loss"), whole.figures("loss"), 1e-5);
    expect_near(many.results[0].tensors, expected.tensors, 1e-3);
}

// Master weights, and with them the result, are not rounded.
TEST(ManyProcesses, MasterWeightsAreTheResult) {
    TinyRun run;
    run.options.weights = TrainType::bf16;
    run.options.learning_rate = 1e-6;  // far below BF16's spacing
    run.options.steps = 2;
    for (const auto& [name, values] : run.run(alone).tensors) {
        const std::vector<float> before = floats_of(run.model, name);
        for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], before[i], 3e-6) << name;
        EXPECT_NE(values, before) << name;
    }
}

TEST(ManyProcesses, ThatDifferAreRefused) {
    ManyRuns many;
    many.code = ErrorCode::usage;
    many.runs[1].options.micro_batch = 1;
    many.runs[2].identity = "model: tiny\ntext: words\n";
    const auto messages = many.run(4);
    ASSERT_EQ(messages.size(), 4U);
    EXPECT_THAT(messages[0], HasSubstr("RANK 1, 2 have"));
    EXPECT_THAT(messages[1], AllOf(HasSubstr("process 1 of 4"), HasSubstr("(there 2, here 1)")));
    EXPECT_THAT(messages[2],
                AllOf(HasSubstr("process 2 of 4"), HasSubstr("text (there letters, here words)")));
    EXPECT_THAT(messages[3], HasSubstr("RANK 1, 2 have"));
}

}  // namespace
}  // namespace refold
