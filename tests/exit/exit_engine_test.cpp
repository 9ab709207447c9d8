// Exits in the ggml engine, on looped models with a different LoRA per loop.
#include <gtest/gtest.h>

#include <map>

#include "compress/loop_fixtures.h"
#include "exit/exit_run.h"
#include "exit/step_by_step.h"

namespace refold {
namespace {

constexpr ExitedKv kEveryKv[] = {ExitedKv::propagate, ExitedKv::catch_up, ExitedKv::share};
constexpr size_t kTokens = 40;

using Runner = void (*)(Engine&, ExitedKv, const ExitRows&, const LoopSink&);
using Seen = std::map<std::pair<int32_t, size_t>, std::vector<float>>;  // logits by loop and token

Model looped(int32_t loops) {
    Work work;
    return apply_method(fixture_model("llama_gqa"), "relax",
                        {fmt::format("loops={}", loops), "init=average", "norms=keep", "rank=4"}, work)
        .model;
}

Model cut_behind(const Model& model, int32_t loops) {
    Model cut = model;
    auto& layers = cut.topology.layers;
    layers.resize(layers.size() / static_cast<size_t>(model.topology.loops) * static_cast<size_t>(loops));
    cut.topology.loops = loops;
    cut.drop_unreferenced();
    return cut;
}

// The loop after which a token exits, whatever its logits.
int32_t exit_of(size_t token, int32_t loops) {
    return 1 + static_cast<int32_t>(token * token * 7 + token / 3) % loops;
}

Seen run(const Model& model, Runner runner, ExitedKv kv, bool exits, int64_t chunk) {
    const EngineOptions options{.threads = 1, .context = 64, .chunk = chunk, .f32 = true, .by_loop = true};
    const auto engine = make_engine(model, options);
    const auto tokens = random_tokens(kTokens, engine->capabilities().n_vocab, 4);
    const int32_t loops = engine->capabilities().loops;
    EXPECT_EQ(loops, model.topology.loops);
    Seen seen;
    runner(*engine, kv, {.sequence = engine->open(kTokens).value(), .tokens = tokens},
           [&](size_t token, int32_t loop, std::span<const float> logits) {
               seen[{loop, token}].assign(logits.begin(), logits.end());
               return exits && loop < loops && loop == exit_of(token, loops);
           });
    return seen;
}

void expect_close(const Seen& a, const Seen& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [place, logits] : a)
        EXPECT_LT(largest_difference(logits, b.at(place)), 2e-4)
            << "loop " << place.first << ", token " << place.second;
}

TEST(ExitEngine, LoopByLoopIsStepByStep) {
    for (const int32_t loops : {2, 4}) {
        const Model model = looped(loops);
        for (const ExitedKv kv : kEveryKv) {
            SCOPED_TRACE(exited_kv_name(kv));
            const Seen steps = run(model, run_step_by_step, kv, true, 16);
            expect_close(run(model, run_with_exits, kv, true, 16), steps);
            expect_close(run(model, run_with_exits, kv, true, 64), steps);
        }
    }
}

TEST(ExitEngine, PoliciesDiffer) {
    const Model model = looped(2);
    const auto last = [&](ExitedKv kv) { return run(model, run_with_exits, kv, true, 64).rbegin()->second; };
    const auto exact = last(ExitedKv::catch_up), propagated = last(ExitedKv::propagate);
    EXPECT_GT(largest_difference(propagated, exact), 1e-2);
    EXPECT_GT(largest_difference(last(ExitedKv::share), exact), 1e-2);
    EXPECT_GT(largest_difference(last(ExitedKv::share), propagated), 1e-2);
}

TEST(ExitEngine, CatchingUpGivesEveryLoopOfTheShorterModels) {
    const Model model = looped(4);
    const Seen exits = run(model, run_with_exits, ExitedKv::catch_up, true, 16);
    const auto n_vocab = static_cast<size_t>(model.config.n_vocab);
    const auto tokens = random_tokens(kTokens, model.config.n_vocab, 4);
    for (int32_t loops = 1; loops <= 4; ++loops) {
        const auto logits =
            all_logits(cut_behind(model, loops), tokens, {.threads = 1, .context = 64, .f32 = true});
        size_t compared = 0;
        for (size_t t = 0; t < kTokens; ++t) {
            const auto found = exits.find({loops, t});
            EXPECT_EQ(found != exits.end(), exit_of(t, 4) >= loops);
            if (found == exits.end()) continue;
            EXPECT_LT(largest_difference(found->second, std::span(logits).subspan(t * n_vocab, n_vocab)),
                      2e-4);
            ++compared;
        }
        EXPECT_GT(compared, 0u);
    }
}

}  // namespace
}  // namespace refold
