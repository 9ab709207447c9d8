// A token that is run and forgotten leaves nothing behind.
#include "engine/warm_up.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/looped_models.h"
#include "engine/random_model.h"

namespace refold {
namespace {

std::vector<float> logits_of_a_text(Engine& engine) {
    const std::vector<int32_t> tokens = {5, 17, 3, 22};
    const int32_t sequence = engine.open(8).value(), loops = engine.capabilities().loops;
    std::vector<float> out;
    for (int32_t loop = 0; loop < loops; ++loop) {
        std::vector<Row> rows;
        for (const int32_t token : tokens) {
            rows.push_back({.sequence = sequence,
                            .position = static_cast<int64_t>(rows.size()),
                            .loop = loop,
                            .token = loop == 0 ? token : -1,
                            .logits = loop + 1 == loops});
        }
        const auto logits = engine.step({.rows = rows}).logits;
        out.assign(logits.begin(), logits.end());
    }
    engine.close(sequence);
    return out;
}

void expect_no_difference(const Model& model, const EngineOptions& options) {
    const auto cold = make_engine(model, options), warm = make_engine(model, options);
    warm_up(*warm);
    EXPECT_EQ(warm->kv_tokens_used(), 0);
    const std::vector<float> expected = logits_of_a_text(*cold);
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(logits_of_a_text(*warm), expected);
    // Again beside an open sequence; with no room for another one nothing happens.
    const int32_t sequence = warm->open(options.kv_tokens).value();
    warm_up(*warm);
    EXPECT_EQ(warm->kv_tokens_used(), options.kv_tokens);
    warm->close(sequence);
}

TEST(WarmUp, LeavesNothingBehind) {
    EngineOptions options{.threads = 1, .context = 64, .f32 = true, .sequences = 0, .kv_tokens = 64};
    expect_no_difference(random_model(DType::F32, 1), options);
    options.by_loop = true;
    expect_no_difference(looped_model("llama"), options);
}

}  // namespace
}  // namespace refold
