#include "engine/expected_memory.h"

#include <gtest/gtest.h>

#include "engine/looped_models.h"
#include "engine/synthetic_models.h"

namespace refold {
namespace {

void expect_near(uint64_t expected, uint64_t measured, const std::string& label) {
    // Matrices as small as these are filled up to whole panels.
    EXPECT_NEAR(static_cast<double>(expected), static_cast<double>(measured),
                0.15 * static_cast<double>(measured) + 4096)
        << label;
}

void expect_as_made(const Model& model, const EngineOptions& options, const std::string& label) {
    const EngineMemory expected = expected_memory(model, options),
                       made = make_engine(model, options)->memory();
    expect_near(expected.weight_bytes, made.weight_bytes, label + ": weights");
    // An engine's cache has whole steps of rows; an encoder keeps nothing in it.
    constexpr int64_t kWholeSteps = 256;
    if (model.config.causal && options.context >= kWholeSteps)
        expect_near(expected.kv_bytes, made.kv_bytes, label + ": KV cache");
}

TEST(ExpectedMemory, IsWhatAnEngineTakes) {
    for (const auto& [name, model, input] : synthetic_models()) {
        if (model.has_sharing()) continue;  // what it would be without has the names of a family
        const int64_t positions = model.config.n_learned_positions, context = positions > 0 ? 16 : 256;
        for (const bool f32 : {true, false})
            expect_as_made(model, {.threads = 1, .context = context, .f32 = f32}, name);
        const EngineOptions several{.threads = 1, .context = context, .sequences = 0, .kv_tokens = 1000};
        if (obstacle_to_several_sequences(model, several).empty()) expect_as_made(model, several, name);
    }
}

TEST(ExpectedMemory, OfStepsByLoop) {
    expect_as_made(looped_model("llama"),
                   {.threads = 1, .context = 256, .f32 = true, .sequences = 0, .by_loop = true}, "looped");
}

}  // namespace
}  // namespace refold
