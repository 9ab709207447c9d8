// Rotations that options put in place of the model's own.
#include "model/rope_override.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/code_of.h"
#include "engine/single_sequence.h"
#include "engine/synthetic_models.h"

namespace refold {
namespace {

RopeOverride scaling(const std::string& text, double base = 0) {
    RopeOverride out;
    parse_rope_scaling(text, out);
    out.base = base;
    return out;
}

std::vector<float> logits(const Model& model, const EngineOptions& options) {
    const std::vector<int32_t> tokens = {3, 16, 0, 7, 7, 12, 1, 9, 5};
    SingleSequence sequence(model, options);
    const auto last = sequence.evaluate(tokens);
    return {last.begin(), last.end()};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(a[i] - b[i])));
    return largest;
}

TEST(RopeOverride, Words) {
    EXPECT_EQ(scaling("yarn:8").scaling, RopeScaling::yarn);
    EXPECT_EQ(scaling("yarn:8").factor, 8);
    EXPECT_EQ(scaling("linear:1.5").factor, 1.5);
    EXPECT_EQ(scaling("none").scaling, RopeScaling::none);
    EXPECT_EQ(to_text(scaling("dynamic:2", 5e5)), "base 500000, dynamic:2");
    EXPECT_EQ(to_text(scaling("none")), "none");
    EXPECT_EQ(to_text({}), "");
    EXPECT_FALSE(RopeOverride().active());
    for (const char* text :
         {"", "linear", "linear:", "linear:0.5", "linear:x", "none:2", "ntk:2", "yarn:inf", "yarn:4x"})
        EXPECT_EQ(code_of([&] { scaling(text); }, "scaling '"), ErrorCode::usage) << text;
}

TEST(RopeOverride, ReplacesTheScalingOfTheModel) {
    const Model yarn = synthetic_model(synthetic::yarn());
    const Model linear = with_rope(yarn, scaling("linear:4"));
    EXPECT_EQ(linear.config.rope.frequency_scale, 0.25F);
    EXPECT_EQ(linear.config.rope.ext_factor, 0.0F);
    EXPECT_EQ(linear.config.rope.attention_factor, 1.0F);
    EXPECT_EQ(linear.config.rope.base, yarn.config.rope.base);
    EXPECT_EQ(linear.config.rope.kind, yarn.config.rope.kind);
    const Model dynamic = with_rope(yarn, scaling("dynamic:2", 1e6));
    EXPECT_EQ(dynamic.config.rope.dynamic_factor, 2.0F);
    EXPECT_EQ(dynamic.config.rope.frequency_scale, 1.0F);
    EXPECT_EQ(dynamic.config.rope.original_context, 128);
    EXPECT_EQ(dynamic.config.rope.base, 1e6F);
    const Model again = with_rope(with_rope(yarn, scaling("none")), scaling("yarn:8"));
    EXPECT_EQ(again.config.rope.ext_factor, 1.0F);
    EXPECT_EQ(again.config.rope.frequency_scale, 0.125F);
    EXPECT_EQ(again.config.rope.beta_fast, 32.0F);
    // Llama 3's frequency factors are a scaling, too.
    const Model factors = synthetic_model(synthetic::capped_windows());
    EXPECT_TRUE(with_rope(factors, {.base = 50}).topology.globals.contains(Slot::rope_freqs));
    EXPECT_FALSE(with_rope(factors, scaling("none")).topology.globals.contains(Slot::rope_freqs));
    EXPECT_EQ(code_of([] { with_rope(synthetic_model(synthetic::alibi()), {.base = 50}); },
                      "no rotary position embeddings"),
              ErrorCode::usage);
}

TEST(RopeOverride, EnginesRunIt) {
    const Model model = synthetic_model(synthetic::decoder());
    EngineOptions options{.threads = 1, .context = 16, .f32 = true};
    const auto own = logits(model, options);
    for (const EngineKind kind : {EngineKind::ggml, EngineKind::torch}) {
        if (kind == EngineKind::torch && !has_torch_engine()) continue;
        options.kind = kind;
        for (const RopeOverride& rope : {RopeOverride{.base = 7}, scaling("linear:3"), scaling("yarn:4")}) {
            options.rope = {};
            const auto expected = logits(with_rope(model, rope), options);
            options.rope = rope;
            EXPECT_LE(distance(logits(model, options), expected), 1e-6) << to_text(rope);
            EXPECT_GT(distance(expected, own), 1e-3) << to_text(rope);
        }
    }
}

// A rotation that depends on the length of the sequence takes one sequence at a time.
TEST(RopeOverride, DynamicScalingIsNotedInAdvance) {
    Model model = synthetic_model(synthetic::decoder());
    EngineOptions options{.threads = 1, .context = 128, .f32 = true};
    EXPECT_EQ(obstacle_to_several_sequences(model, options), "");
    options.rope = scaling("dynamic:2");
    EXPECT_THAT(obstacle_to_several_sequences(model, options), testing::HasSubstr("stretched"));
    EXPECT_TRUE(make_engine(model, options)->capabilities().stretches_rotation);
}

}  // namespace
}  // namespace refold
