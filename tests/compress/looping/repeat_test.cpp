// repeat: the result runs the named layers in order, from the stored weights alone.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/ownership.h"
#include "model/save.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using nlohmann::json;

const SmallShape kFour{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 24, .vocab = 24};

Model small() { return small_model(kFour, scattered_small); }

// The same layers with weights that are copies, put together by hand.
Model with_copies(const Model& model, const std::vector<size_t>& sequence) {
    Model out = model;
    out.tensors.clear();
    for (const auto& [slot, expression] : model.topology.globals) {
        for (const auto& name : tensors_of(expression)) out.tensors[name] = model.tensor(name);
    }
    out.topology.layers.clear();
    for (size_t i = 0; i < sequence.size(); ++i) {
        Slots slots;
        for (const auto& [slot, expression] : model.topology.layers[sequence[i]]) {
            const std::string name = fmt::format("copy.{}.{}", i, slot_name(slot));
            out.tensors[name] = model.tensor(std::get<Dense>(expression).tensor);
            slots[slot] = Dense{name};
        }
        out.topology.layers.push_back(slots);
    }
    return out;
}

TEST(Repeat, LayersRunInTheOrderThatIsNamed) {
    const Model model = small();
    StepReport report;
    const Model repeated = run_method("repeat", model, {"layers=0-2, 1-3"}, &report);
    const std::vector<size_t> sequence = {0, 1, 2, 1, 2, 3};
    ASSERT_EQ(repeated.topology.layers.size(), 6U);
    for (size_t i = 0; i < 6; ++i)
        EXPECT_EQ(repeated.topology.layers[i], model.topology.layers[sequence[i]]) << i;
    EXPECT_EQ(json::parse(report.details)["layers"], json(sequence));
    EXPECT_EQ(json::parse(report.details)["repeated"], json({1, 2}));
    EXPECT_EQ(outputs_of(repeated), outputs_of(with_copies(model, sequence)));
    EXPECT_NE(outputs_of(repeated), outputs_of(model));
    // Stored layer 3 runs as layer 5: what has its name there is not the layer 3 of now.
    EXPECT_EQ(Ownership(repeated).layer_of("blk.3.attn_q.weight"), 5U);
    EXPECT_EQ(Ownership(repeated).layer_of("blk.1.attn_q.weight"), 1U);
    // Backwards, and with a layer left out.
    const Model other = run_method("repeat", model, {"layers=3,0,0"});
    EXPECT_EQ(outputs_of(other), outputs_of(with_copies(model, {3, 0, 0})));
    EXPECT_EQ(parameters(model) - parameters(other),
              2 * (parameters(model) - parameters(run_method("repeat", model, {"layers=0-2"}))));
}

TEST(Repeat, AddsNoBytesButKeysAndValues) {
    const Model model = small();
    const Model repeated = run_method("repeat", model, {"layers=all,all"});
    EXPECT_EQ(account(repeated).model.bytes, account(model).model.bytes);
    EXPECT_EQ(account(repeated).model.kv_bytes_per_token, 2 * account(model).model.kv_bytes_per_token);
    EXPECT_EQ(repeated.topology.loops, 1);
    const Model loaded = saved_and_loaded(repeated);
    EXPECT_EQ(loaded.metadata.integer("llama.block_count"), 8U);
    EXPECT_EQ(outputs_of(loaded), outputs_of(repeated));
}

TEST(Repeat, AllLayersOnceIsTheIdentity) {
    const Model model = small();
    for (const char* layers : {"layers=all", "layers=0-3", "layers=0,1-2,3"})
        expect_identical(run_method("repeat", model, {layers}), model);
}

class RepeatFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Fixtures, RepeatFamilies, testing::ValuesIn(fixture_models()),
                         [](const auto& test) { return test.param; });

// Spans that keep the order of windows in every family: all layers twice, where their number is even.
TEST_P(RepeatFamilies, ExportsHaveCopies) {
    const Model model = fixture_model(GetParam());
    Model repeated;
    try {
        repeated = run_method("repeat", model, {"layers=all,all"});
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        const bool windows = std::any_of(model.config.windows.begin(), model.config.windows.end(),
                                         [](int64_t w) { return w > 0; });
        EXPECT_TRUE(windows || model.config.scale_by_layer) << error.what();
        return;
    }
    const std::vector<float> expected = outputs_of(repeated);
    EXPECT_EQ(outputs_of(without_sharing(repeated)), expected);
    EXPECT_EQ(outputs_of(saved_and_loaded(repeated)), expected);
    const TempFolder folder;
    save_model(without_sharing(repeated), folder / "copies.gguf", false);
    EXPECT_EQ(outputs_of(load_model(folder / "copies.gguf")), expected);
    save_hf_model(repeated, folder / "hf", {});
    const Model back = load_model(folder / "hf");
    EXPECT_EQ(back.topology.layers.size(), 2 * model.topology.layers.size());
    EXPECT_FALSE(back.has_sharing());
    EXPECT_EQ(outputs_of(back), expected);
}

TEST(Repeat, WindowsBelongToPlacesInTheStack) {
    const Model model = fixture_model("gemma2");
    ASSERT_EQ(model.config.window(0) > 0, true);
    ASSERT_EQ(model.config.window(1), 0);
    const Model repeated = run_method("repeat", model, {"layers=0-1,0-1"});
    for (size_t p = 0; p < 4; ++p) EXPECT_EQ(repeated.config.window(p), model.config.window(p % 2));
    expect_error(ErrorCode::unsupported, {"layer 0", "would become layer 1", "no window"},
                 [&] { run_method("repeat", model, {"layers=0,0-1"}); });
}

TEST(Repeat, AttentionComesFromTheNearestRepetition) {
    const Model model = planned(small(), {"cla superblocks=1-2"}).model;
    const Model repeated = run_method("repeat", model, {"layers=0-2,1-3"});
    EXPECT_EQ(repeated.topology.source(2).kv, 1U);
    EXPECT_EQ(repeated.topology.source(4).kv, 3U);
    EXPECT_EQ(repeated.topology.sources.size(), 2U);
    const Model reused = run_method("repeat", model, {"layers=0-2,2-3"});
    EXPECT_EQ(reused.topology.source(3).kv, 1U);
    outputs_of(reused);
    expect_error(ErrorCode::unsupported, {"layer 2", "from layer 1", "name both"},
                 [&] { run_method("repeat", model, {"layers=0,2-3"}); });
}

TEST(Repeat, SizesOfLayersGoWithThem) {
    const Model pruned = planned(small(), {"drop layers=1", "drop layers=2 modules=ffn"}).model;
    const Model repeated = run_method("repeat", pruned, {"layers=0-3,1-2"});
    EXPECT_EQ(repeated.config.heads_kv, (std::vector<int64_t>{2, 0, 2, 2, 0, 2}));
    EXPECT_EQ(repeated.config.ffs, (std::vector<int64_t>{24, 24, 0, 24, 24, 0}));
    EXPECT_EQ(outputs_of(saved_and_loaded(repeated)), outputs_of(repeated));
    const Model whole = run_method("repeat", pruned, {"layers=0,3,0"});
    EXPECT_TRUE(whole.config.heads_kv.empty());
    EXPECT_TRUE(whole.config.ffs.empty());
}

TEST(Repeat, LaterStepsChangeAllRepetitions) {
    const Model model =
        planned(small(), {"repeat layers=0-2,1-3", "laser slots=ffn.down layers=1,3 rho=0.2"}).model;
    EXPECT_EQ(model.topology.at(1, Slot::ffn_down), model.topology.at(3, Slot::ffn_down));
    expect_error(ErrorCode::unsupported, {"same weights"}, [] {
        planned(small(), {"repeat layers=0-2,1-3", "laser slots=ffn.down layers=1 rho=0.2"});
    });
    // Each repetition has its own LoRA.
    const Model lora = planned(small(), {"repeat layers=0-2,1-3", "lora rank=2"}).model;
    EXPECT_NE(lora.topology.at(1, Slot::attn_q), lora.topology.at(3, Slot::attn_q));
}

TEST(Repeat, WhatDoesNotFitIsRefused) {
    const Model model = small();
    expect_error(ErrorCode::usage, {"layers is needed"}, [&] { run_method("repeat", model, {}); });
    expect_error(ErrorCode::usage, {"layers 0 to 3"}, [&] { run_method("repeat", model, {"layers=0-4"}); });
    expect_error(ErrorCode::usage, {"expected layers such as"},
                 [&] { run_method("repeat", model, {"layers=3-0"}); });
    std::string many = "layers=all";
    for (int i = 0; i < 1024; ++i) many += ",all";
    expect_error(ErrorCode::usage, {"4100 layers", "4096"}, [&] { run_method("repeat", model, {many}); });
    const Model looped = planned(model, {"recursive loops=2"}).model;
    expect_error(ErrorCode::unsupported, {"2 loops"},
                 [&] { run_method("repeat", looped, {"layers=all,all"}); });
    Model scaled = model;
    scaled.config.scale_by_layer = true;
    expect_error(ErrorCode::unsupported, {"number of the layer", "layer 0 would become layer 1"},
                 [&] { run_method("repeat", scaled, {"layers=0,0-3"}); });
}

}  // namespace
}  // namespace refold
