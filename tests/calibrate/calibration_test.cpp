// Sequences of calibration text, and the residual stream of a model layer by layer.
#include "calibrate/calibration.h"

#include <gtest/gtest.h>

#include <numeric>

#include "calibrate/aligned_streams.h"
#include "calibrate/residual_stream.h"
#include "core/error_of.h"
#include "engine/compare.h"
#include "engine/expression_models.h"
#include "model/quantized.h"

namespace refold {
namespace {

constexpr double kTolerance = 1e-4;

// ---- sequences ----

std::vector<int32_t> counting(size_t count) {
    std::vector<int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}

TEST(Calibration, EveryEighthSequenceIsHeldOut) {
    const auto tokens = counting(170);
    const Calibration out = make_calibration("text.txt", "some text", tokens, {.tokens = 165, .length = 10});
    ASSERT_EQ(out.fit.size(), 14U);
    ASSERT_EQ(out.held_out.size(), 2U);
    EXPECT_EQ(out.held_out[0].front(), 70);
    EXPECT_EQ(out.held_out[1].front(), 150);
    EXPECT_EQ(out.fit_tokens(), 140);
    EXPECT_EQ(out.name(), "text.txt");
    // Every token occurs once, in whole sequences.
    std::vector<bool> seen(160);
    for (const auto* sequences : {&out.fit, &out.held_out}) {
        for (const auto& sequence : *sequences) {
            ASSERT_EQ(sequence.size(), 10U);
            for (size_t i = 0; i < sequence.size(); ++i) {
                EXPECT_EQ(sequence[i], sequence[0] + static_cast<int32_t>(i));
                EXPECT_FALSE(seen.at(static_cast<size_t>(sequence[i])));
                seen.at(static_cast<size_t>(sequence[i])) = true;
            }
        }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 160);
}

TEST(Calibration, OneSequenceIsHeldOutAtLeast) {
    for (const size_t sequences : {2U, 3U, 7U, 8U, 9U}) {
        const Calibration out =
            make_calibration("t", "t", counting(4 * sequences), {.tokens = 1000, .length = 4});
        EXPECT_EQ(out.held_out.size(), 1U) << sequences;
        EXPECT_EQ(out.fit.size(), sequences - 1) << sequences;
    }
    EXPECT_EQ(make_calibration("t", "t", counting(64), {.tokens = 64, .length = 4}).held_out.size(), 2U);
}

// Takes sequences of several texts in turn and holds out some of each.
TEST(Calibration, OfSeveralTexts) {
    std::vector<std::vector<int32_t>> tokens = {counting(64), counting(8), counting(64)};
    for (int32_t& t : tokens[1]) t += 1000;
    for (int32_t& t : tokens[2]) t += 2000;
    const std::vector<CalibrationText> texts = {
        {"a", "x", tokens[0]}, {"b", "y", tokens[1]}, {"c", "z", tokens[2]}};
    const auto firsts = [](const std::vector<std::vector<int32_t>>& sequences) {
        std::vector<int32_t> out;
        for (const auto& sequence : sequences) out.push_back(sequence.front());
        return out;
    };
    const Calibration some = make_calibration(texts, {.tokens = 24, .length = 4});
    EXPECT_EQ(firsts(some.fit), (std::vector<int32_t>{0, 1000, 2000, 4, 1004}));
    EXPECT_EQ(firsts(some.held_out), (std::vector<int32_t>{2004}));  // the very last sequence
    const Calibration all = make_calibration(texts, {.tokens = 1000, .length = 4});
    EXPECT_EQ(all.fit.size() + all.held_out.size(), 34U);
    EXPECT_EQ(firsts(all.held_out), (std::vector<int32_t>{2020, 28, 2052, 60}));
    EXPECT_EQ(all.name(), "a, b, c");
    ASSERT_EQ(all.texts.size(), 3U);
    EXPECT_EQ(all.texts[0].hash, make_calibration("a", "x", tokens[0], {.tokens = 8, .length = 4}).hash);
    EXPECT_NE(all.hash, all.texts[0].hash);
    EXPECT_EQ(all.hash, some.hash);
    error_of([&] { make_calibration(std::span<const CalibrationText>(), {}); }, ErrorCode::usage);
}

TEST(Calibration, HashIsTheTexts) {
    const auto hash = [](const char* text) {
        return make_calibration("t", text, counting(8), {.tokens = 8, .length = 4}).hash;
    };
    EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_NE(hash("abd"), hash("abc"));
}

TEST(Calibration, TooLittleIsRefused) {
    const auto make = [](size_t tokens, CalibrationOptions options) {
        make_calibration("short.txt", "", counting(tokens), options);
    };
    const std::string text = error_of([&] { make(19, {.tokens = 100, .length = 10}); }, ErrorCode::input);
    EXPECT_NE(text.find("'short.txt' has 19 tokens"), std::string::npos) << text;
    error_of([&] { make(0, {}); }, ErrorCode::input);
    constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
    for (const CalibrationOptions& options : {CalibrationOptions{.tokens = 19, .length = 10},
                                              {.tokens = 100, .length = 1},
                                              {.tokens = 100, .length = 0},
                                              {.tokens = 100, .length = -3},
                                              {.tokens = -5, .length = 2},
                                              {.tokens = 100, .length = kHuge},
                                              {.tokens = kHuge, .length = kHuge / 2 + 1}})
        error_of([&] { make(1000, options); }, ErrorCode::usage);
}

// ---- the residual stream ----

using Sequences = std::vector<std::vector<int32_t>>;
const Sequences kSequences = {{3, 16, 0, 7, 7, 12, 1, 39}, {5, 5, 21, 30, 2, 9, 11, 0}, {1, 2, 3}};
constexpr int64_t kLength = 8;

// The reference's residual stream before a layer, or after the last one.
std::vector<float> expected_before(const Model& model, size_t layer, const std::vector<int32_t>& tokens) {
    const auto out = reference::run(model, {tokens, {}, {}});
    return reference::flat(layer == model.topology.layers.size() ? out.residual
                                                                 : out.taps.at({layer, Tap::layer_input}));
}

double scaled_difference(std::span<const float> got, std::span<const float> expected) {
    double largest = 1;
    for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
    return largest_difference(got, expected) / largest;
}

std::vector<ExpressionModel> models() {
    std::vector<ExpressionModel> models = expression_models();
    std::erase_if(models, [](const auto& entry) {
        return !entry.name.starts_with("llama") && !entry.name.starts_with("gptneox");
    });
    return models;
}

// A pass returns the residual after its last layer, wherever the stream is.
TEST(ResidualStream, IsTheReferences) {
    for (const auto& [name, model, input] : models()) {
        ResidualStream stream(model, kSequences, kLength, 1);
        ASSERT_EQ(stream.sequences(), kSequences.size());
        for (size_t last = 0; last < model.topology.layers.size(); ++last) {
            ResidualStream::Pass pass(stream, model, last, {});
            for (const size_t s : {size_t{1}, size_t{2}, size_t{0}}) {
                EXPECT_LE(scaled_difference(pass.run(s), expected_before(model, last + 1, kSequences[s])),
                          kTolerance)
                    << name << ", layer " << last << ", sequence " << s;
            }
            stream.advance(model, last);
        }
        EXPECT_EQ(stream.layer(), model.topology.layers.size()) << name;
    }
}

TEST(ResidualStream, StaysBeforeALayerThatOthersNeed) {
    ExpressionBuilder b("llama");
    b.share_probabilities(2, 1);
    b.share_kv(3, 1);
    const Model model = b.finish();
    ResidualStream stream(model, kSequences, kLength, 1);
    for (const auto& [last, layer] : {std::pair<size_t, size_t>{0, 1}, {1, 1}, {2, 1}, {3, 4}}) {
        stream.advance(model, last);
        EXPECT_EQ(stream.layer(), layer) << last;
    }
    error_of([&] { stream.advance(model, 1); }, ErrorCode::internal);
}

// Layers that change while the stream waits run in their final form.
TEST(ResidualStream, LayersTakeTheirFinalForm) {
    ExpressionBuilder b("llama", 3);
    b.share_probabilities(2, 1);
    Model model = b.finish();
    ResidualStream stream(model, kSequences, kLength, 1);
    stream.advance(model, 0);
    b.compensate(2, Slot::attn_comp);
    const Model changed = b.finish();
    stream.advance(changed, 1);
    stream.advance(changed, 2);
    ASSERT_EQ(stream.layer(), 3U);
    ResidualStream::Pass pass(stream, changed, 3, {Tap::layer_input});
    const auto after = pass.run(0);
    EXPECT_LE(scaled_difference(after, expected_before(changed, 4, kSequences[0])), kTolerance);
    EXPECT_LE(scaled_difference(pass.tapped(Tap::layer_input), expected_before(changed, 3, kSequences[0])),
              kTolerance);
    EXPECT_GT(scaled_difference(after, expected_before(model, 4, kSequences[0])), 1e-2);
}

TEST(ResidualStream, PassesShowTheirLastLayer) {
    ExpressionBuilder b("llama", 4);
    b.share_probabilities(2, 0);
    b.prune_ffn(3, 0);
    const Model model = b.finish();
    const std::vector<Tap> taps = {
        Tap::attn_input, Tap::q, Tap::v, Tap::attn_inner, Tap::residual, Tap::ffn_inner, Tap::ffn_projected};
    ResidualStream stream(model, kSequences, kLength, 1);
    for (size_t last = 0; last < 4; ++last) {
        ResidualStream::Pass pass(stream, model, last, taps);
        EXPECT_TRUE(pass.tapped(Tap::attn_input).empty());  // before the first sequence
        for (size_t s = 0; s < kSequences.size(); ++s) {
            pass.run(s);
            const auto expected = reference::run(model, {kSequences[s], {}, {}}).taps;
            for (const Tap tap : taps) {
                const auto found = expected.find({last, tap});
                const auto got = pass.tapped(tap);
                EXPECT_EQ(got.empty(), found == expected.end()) << last << " " << tap_name(tap);
                if (found == expected.end()) continue;
                EXPECT_LE(scaled_difference(got, reference::flat(found->second)), kTolerance)
                    << last << " " << tap_name(tap);
            }
        }
        stream.advance(model, last);
    }
}

// The FFN is run from the stream after the attention, as long as that is the same; what a changed output map
// adds is computed from its inputs.
TEST(AlignedStreams, EveryVisitSeesThePresentModel) {
    Calibration text;
    text.options.length = kLength;
    text.fit = kSequences;
    const std::vector<Tap> of_ffn = {Tap::ffn_input, Tap::ffn_inner, Tap::ffn_output};
    for (const auto& [name, model, input] : models()) {
        AlignedStreams streams(model, model, text, 1);
        const auto check = [&](const Model& present, size_t layer, const std::vector<Tap>& taps,
                               AlignedStreams::Extent extent) {
            size_t seen = 0;
            streams.visit(
                present, layer, {Tap::ffn_output}, taps,
                [&](const AlignedStreams::Rows& rows) {
                    SCOPED_TRACE(name + ", layer " + std::to_string(layer));
                    const auto& tokens = kSequences[rows.sequence];
                    const auto expected = reference::run(present, {tokens, {}, {}}).taps;
                    for (const Tap tap : taps) {
                        const auto found = expected.find({layer, tap});
                        const auto got = rows.modified.tapped(tap);
                        ASSERT_EQ(got.empty(), found == expected.end()) << tap_name(tap);
                        if (got.empty()) continue;
                        EXPECT_LE(scaled_difference(got, reference::flat(found->second)), kTolerance)
                            << tap_name(tap);
                    }
                    if (extent == AlignedStreams::Extent::whole) {
                        EXPECT_LE(
                            scaled_difference(rows.modified.out, expected_before(present, layer + 1, tokens)),
                            kTolerance);
                    }
                    EXPECT_EQ(rows.original.out.empty(), extent == AlignedStreams::Extent::model_taps);
                    if (!rows.original.out.empty()) {
                        EXPECT_LE(
                            scaled_difference(rows.original.out, expected_before(model, layer + 1, tokens)),
                            kTolerance);
                    }
                    ++seen;
                },
                extent);
            EXPECT_EQ(seen, kSequences.size());
        };
        Model present = model;
        for (size_t layer = 0; layer < model.topology.layers.size(); ++layer) {
            check(present, layer, of_ffn, AlignedStreams::Extent::model_taps);
            // The attention is rounded, then the FFN: in odd layers right after a visit that saw their
            // inputs.
            const bool odd = layer % 2 == 1;
            for (const Slot slot : {Slot::attn_o, Slot::ffn_down}) {
                const auto found = present.topology.layers[layer].find(slot);
                if (found == present.topology.layers[layer].end()) continue;
                const bool of_attention = slot == Slot::attn_o;
                if (odd && of_attention)
                    check(present, layer, {Tap::attn_inner, Tap::residual}, AlignedStreams::Extent::taps);
                if (odd && !of_attention) check(present, layer, of_ffn, AlignedStreams::Extent::whole);
                for (const std::string& tensor : tensors_of(found->second))
                    present.tensors[tensor] = nearest_tensor(present, tensor, DType::BF16, {});
                if (odd && !of_attention) continue;
                check(present, layer, of_ffn, AlignedStreams::Extent::model_taps);
                check(present, layer, {Tap::ffn_output}, AlignedStreams::Extent::whole);
            }
            if (!odd) check(present, layer, {Tap::layer_input}, AlignedStreams::Extent::taps);
            streams.advance(present, layer);
        }
    }
}

}  // namespace
}  // namespace refold
