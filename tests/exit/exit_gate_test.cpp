// Ouro's own gate against what its reference computes: probabilities of exits, the loops that tokens exit
// after, and their logits.
#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "engine/compare.h"
#include "exit/exit_run.h"
#include "io/safetensors.h"
#include "model/load.h"

namespace refold {
namespace {

constexpr int32_t kLoops = 4;
constexpr double kThreshold = 0.5;  // of golden.json

class ExitGate : public testing::Test {
protected:
    template <typename T>
    std::vector<T> golden(const std::string& name) const {
        const auto& view = file_.tensors.at(name);
        std::vector<T> out(view.data.size() / sizeof(T));
        memcpy(out.data(), view.data.data(), view.data.size());
        return out;
    }
    std::vector<int32_t> ids() const {
        const auto wide = golden<int64_t>("input_ids.2");
        return {wide.begin(), wide.end()};
    }

    const std::string folder_ = std::string(REFOLD_FIXTURES) + "/hf/ouro";
    const SafetensorsFile file_ = read_safetensors(folder_ + "/golden.safetensors");
    const Model model_ = load_model(folder_);
    const std::unique_ptr<Engine> engine_ =
        make_engine(model_, {.threads = 1, .context = 64, .chunk = 8, .f32 = true, .by_loop = true});
};

TEST_F(ExitGate, ProbabilitiesAndLogitsOfEveryLoop) {
    ASSERT_TRUE(engine_->capabilities().exit_gate);
    const auto tokens = ids();
    const auto pdf = golden<float>("exit_pdf.2"), logits = golden<float>("step_logits.2");
    const size_t count = tokens.size(), vocabulary = logits.size() / count / kLoops;
    run_with_exits(*engine_, ExitedKv::catch_up, {.sequence = engine_->open(40).value(), .tokens = tokens},
                   [&](size_t token, int32_t loop, const LoopLogits& own) {
                       double exited = 0;
                       for (int32_t l = 0; l < loop; ++l)
                           exited += pdf[static_cast<size_t>(l) * count + token];
                       if (loop < kLoops) {
                           EXPECT_NEAR(own.exited, exited, 1e-5) << token << ' ' << loop;
                       }
                       const size_t place = (static_cast<size_t>(loop - 1) * count + token) * vocabulary;
                       EXPECT_LE(largest_difference(own, std::span(logits).subspan(place, vocabulary)), 1e-4);
                       return false;
                   });
}

TEST_F(ExitGate, TokensExitWhereTheReferenceDoes) {
    const auto tokens = ids();
    const auto steps = golden<int64_t>("exit_step.2");
    const auto logits = golden<float>("exit_logits.2");
    const size_t vocabulary = logits.size() / tokens.size();
    const ExitPolicy policy{.rule = ExitRule::gate, .thresholds = {kThreshold}};
    std::vector<int64_t> exits(tokens.size(), kLoops - 1);
    run_with_exits(*engine_, ExitedKv::catch_up, {.sequence = engine_->open(40).value(), .tokens = tokens},
                   [&](size_t token, int32_t loop, const LoopLogits& own) {
                       const bool leaves = loop == kLoops || policy.exits(loop, own);
                       if (!leaves) return false;
                       exits[token] = loop - 1;
                       EXPECT_LE(
                           largest_difference(own, std::span(logits).subspan(token * vocabulary, vocabulary)),
                           1e-4)
                           << token;
                       return true;
                   });
    EXPECT_EQ(exits, steps);
    EXPECT_LT(*std::min_element(exits.begin(), exits.end()), kLoops - 1);
}

// Tokens of a sequence that is cut back count their loops anew.
TEST_F(ExitGate, ProbabilitiesEndWithTheirTokens) {
    const auto tokens = ids();
    const int32_t sequence = engine_->open(40).value();
    const auto run = [&](int64_t from) {
        std::vector<double> out;
        run_with_exits(*engine_, ExitedKv::catch_up,
                       {.sequence = sequence,
                        .position = from,
                        .tokens = std::span(tokens).subspan(static_cast<size_t>(from))},
                       [&](size_t, int32_t, const LoopLogits& own) {
                           out.push_back(own.exited);
                           return false;
                       });
        return out;
    };
    const auto all = run(0);
    engine_->truncate(sequence, 10);
    const auto again = run(10);
    ASSERT_EQ(all.size(), tokens.size() * kLoops);
    EXPECT_EQ(again.size(), (tokens.size() - 10) * kLoops);
    for (const double exited : again) EXPECT_LE(exited, 1.0);
    engine_->truncate(sequence, 0);
    EXPECT_EQ(run(0), all);
}

TEST_F(ExitGate, OtherModelsHaveNone) {
    const ExitPolicy policy{.rule = ExitRule::gate, .thresholds = {kThreshold}};
    EXPECT_NO_THROW(check_exit_policy(policy, kLoops, true));
    EXPECT_THROW(check_exit_policy(policy, kLoops), Error);
    EXPECT_EQ(exit_rule_from_name("gate"), ExitRule::gate);
}

}  // namespace
}  // namespace refold
