#include "exit/exit_run.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/compare.h"
#include "exit/step_by_step.h"
#include "serve/fake_engine.h"

namespace refold {
namespace {

constexpr ExitedKv kEveryKv[] = {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share};

using Runner = void (*)(Engine&, ExitedKv, const ExitRows&, const LoopSink&);
using Seen = std::map<std::pair<size_t, int32_t>, std::vector<float>>;  // logits by token and loop

FakeEngineOptions fake(int32_t loops, int64_t max_rows = 7) {
    FakeEngineOptions options;
    options.loops = loops;
    options.n_vocab = 32;
    options.context = options.kv_tokens = 64;
    options.max_rows = max_rows;
    return options;
}

// Runs a text in two parts; the first `first_exit` tokens of the first part may not exit.
Seen run(FakeEngine engine, Runner runner, ExitedKv kv, const ExitPolicy& policy, size_t first_exit = 3) {
    const auto tokens = random_tokens(30, engine.capabilities().n_vocab, 1);
    const int32_t sequence = engine.open(40).value();
    Seen seen;
    std::mutex mutex;
    for (const auto& [begin, count] : {std::pair{0, 19}, {19, 11}}) {
        const auto at = static_cast<size_t>(begin);
        const ExitRows rows{.sequence = sequence,
                            .position = begin,
                            .tokens = std::span(tokens).subspan(at, static_cast<size_t>(count)),
                            .first_exit = begin == 0 ? first_exit : 0};
        runner(engine, kv, rows, [&](size_t token, int32_t loop, std::span<const float> logits) {
            const std::lock_guard lock(mutex);
            EXPECT_TRUE(seen.try_emplace({at + token, loop}, logits.begin(), logits.end()).second);
            return loop < engine.capabilities().loops && policy.exits(loop, logits);
        });
    }
    return seen;
}

// About half of the tokens exit.
const ExitPolicy kPolicy{.rule = ExitRule::probability, .thresholds = {0.3}};

TEST(ExitRun, IsWhatStepByStepGives) {
    for (const ExitedKv kv : kEveryKv) {
        for (const int32_t loops : {2, 3}) {
            const Seen seen = run(FakeEngine(fake(loops)), run_with_exits, kv, kPolicy);
            EXPECT_EQ(seen, run(FakeEngine(fake(loops)), run_step_by_step, kv, kPolicy))
                << exited_kv_name(kv);
            EXPECT_EQ(seen, run(FakeEngine(fake(loops, 64)), run_with_exits, kv, kPolicy));
            // Some tokens exit, some do not, and tokens before first_exit give no logits.
            EXPECT_LT(seen.size(), 27u * static_cast<size_t>(loops));
            EXPECT_GT(seen.size(), 27u);
            EXPECT_EQ(seen.begin()->first.first, 3u);
        }
    }
}

TEST(ExitRun, PoliciesDiffer) {
    const auto of = [](ExitedKv kv) { return run(FakeEngine(fake(3)), run_with_exits, kv, kPolicy); };
    EXPECT_NE(of(ExitedKv::propagate), of(ExitedKv::catch_up));
    EXPECT_NE(of(ExitedKv::share), of(ExitedKv::catch_up));
    EXPECT_NE(of(ExitedKv::share), of(ExitedKv::propagate));
}

TEST(ExitRun, WithoutExitsAllLoopsGiveLogits) {
    const Seen full = run(FakeEngine(fake(3)), run_with_exits, ExitedKv::catch_up, {}, 0);
    EXPECT_EQ(full.size(), 90u);
    for (const ExitedKv kv : kEveryKv) EXPECT_EQ(run(FakeEngine(fake(3)), run_with_exits, kv, {}, 0), full);
}

// A model truncated after loop l gives the logits of loop l.
TEST(ExitRun, CatchingUpKeepsEveryLoopExact) {
    const Seen exits = run(FakeEngine(fake(3)), run_with_exits, ExitedKv::catch_up, kPolicy, 0);
    for (const int32_t loops : {1, 2, 3}) {
        const Seen cut = run(FakeEngine(fake(loops)), run_with_exits, ExitedKv::catch_up, {}, 0);
        for (const auto& [place, logits] : exits) {
            if (place.second == loops) {
                EXPECT_EQ(logits, cut.at(place));
            }
        }
    }
}

TEST(ExitRun, AFixedExitIsTheShorterModelWhateverTheKeys) {
    const Seen cut = run(FakeEngine(fake(2)), run_with_exits, ExitedKv::catch_up, {}, 0);
    for (const ExitedKv kv : kEveryKv) {
        const Seen fixed =
            run(FakeEngine(fake(3)), run_with_exits, kv, {.rule = ExitRule::fixed, .loop = 2}, 0);
        EXPECT_EQ(fixed, cut);
    }
}

TEST(ExitRun, TheChunkBoundsTheLogits) {
    EXPECT_EQ(exit_chunk(49152), 341);
    EXPECT_EQ(exit_chunk(262144), 64);
    EXPECT_EQ(exit_chunk(100), 512);
    EXPECT_EQ(exit_chunk(int64_t{1} << 40), 16);
}

}  // namespace
}  // namespace refold
