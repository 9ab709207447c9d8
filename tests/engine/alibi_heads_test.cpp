// Layers of an ALiBi model that lack some of their heads: the others keep their slopes.
#include <gtest/gtest.h>

#include "engine/compare.h"
#include "engine/reference.h"
#include "engine/single_sequence.h"
#include "engine/synthetic_models.h"

namespace refold {
namespace {

TEST(AlibiHeads, KeepTheirSlopes) {
    const Model model = synthetic_model(synthetic::pruned_alibi());
    const std::vector<int32_t> tokens = {3, 16, 0, 7, 7, 12, 1, 9, 5};
    const auto width = static_cast<size_t>(model.config.n_vocab);
    const auto logits_of = [&](const Model& m) {
        return reference::flat(reference::run(m, reference::Input{tokens, {}, {}}).logits);
    };
    Model others = model;  // the slopes of the first heads
    others.config.alibi_heads = {{0, 1, 2}, {}, {0}};
    const auto expected = logits_of(model), wrong = logits_of(others);
    for (const EngineKind kind : {EngineKind::ggml, EngineKind::torch}) {
        if (kind == EngineKind::torch && !has_torch_engine()) continue;
        SingleSequence sequence(model, {.kind = kind, .threads = 2, .context = 16, .chunk = 4, .f32 = true});
        const auto check = [&](std::span<const float> logits, size_t token) {
            const auto row = [&](const std::vector<float>& all) {
                return std::span(all).subspan(token * width, width);
            };
            EXPECT_LE(scaled_difference(logits, row(expected)), 1e-4)
                << static_cast<int>(kind) << " " << token;
            EXPECT_GT(scaled_difference(logits, row(wrong)), 1e-3) << static_cast<int>(kind) << " " << token;
        };
        check(sequence.evaluate(std::span(tokens).first(6)), 5);
        for (size_t t = 6; t < tokens.size(); ++t)
            check(sequence.evaluate(std::span(tokens).subspan(t, 1)), t);
    }
}

}  // namespace
}  // namespace refold
