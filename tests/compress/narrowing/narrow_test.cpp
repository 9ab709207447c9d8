// narrow: which parts go, that the rest makes up for them, and budgets.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/logit_distance.h"
#include "compress/rewrite/channels.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/stock.h"

namespace refold {
namespace {

const SmallShape kShape{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .ff = 32, .vocab = 24};

Model random_model() { return small_model(kShape, scattered_small); }

// In `layers`, the second half of the FFN computes the same channels as the first, and KV group 1 the same
// as group 0, with maps after them of their own.
Model repetitive_model(const std::vector<size_t>& layers) {
    return small_model(kShape, [layers](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (std::find(layers.begin(), layers.end(), layer) != layers.end()) {
            if (slot == Slot::ffn_gate || slot == Slot::ffn_up) row %= 16;
            if (slot == Slot::attn_q) row %= 8;
            if (slot == Slot::attn_k || slot == Slot::attn_v) row %= 4;
        }
        return scattered_small(layer, slot, row, column);
    });
}

Compression narrowed(const Model& model, const std::string& settings) {
    return calibrated(model, {"narrow " + settings}, random_text(model, 16, 32));
}

TEST(Narrow, NothingToRemoveIsTheIdentity) {
    const Model model = random_model();
    for (const char* allocation : {"uniform", "global"})
        expect_identical(narrowed(model, fmt::format("ratio=0 allocation={}", allocation)).model, model);
}

// Channels and groups that others repeat cost nothing: the maps after them take over their columns.
TEST(Narrow, RemovesWhatOthersRepeat) {
    const Model model = repetitive_model({0, 1, 2, 3});
    const std::string most = "ratio=0.5 attention=0.5 allocation=uniform multiple=1 ridge=1e-6 bias=no ";
    const Model out = narrowed(model, most + "select=obs").model;
    EXPECT_EQ(out.config.ffs, (std::vector<int64_t>{16, 16, 16, 16}));
    EXPECT_EQ(out.config.heads_kv, (std::vector<int64_t>{1, 1, 1, 1}));
    const double size = distance(model, random_model()), left = distance(model, out);
    EXPECT_LE(left, 0.01 * size);
    // Magnitude does not see that channels repeat each other.
    EXPECT_GE(distance(model, narrowed(model, most + "select=activation").model), 10 * left);
}

TEST(Narrow, GlobalAllocationTakesFromTheLayersThatCanSpareIt) {
    const Model model = repetitive_model({1, 2});
    const Compression global = narrowed(model, "ratio=0.25 multiple=8 ridge=1e-6 allocation=global");
    EXPECT_EQ(global.model.config.ffs, (std::vector<int64_t>{32, 16, 16, 32}));
    const Compression even = narrowed(model, "ratio=0.25 multiple=8 ridge=1e-6 allocation=uniform");
    EXPECT_EQ(even.model.config.ffs, (std::vector<int64_t>{24, 24, 24, 24}));
    EXPECT_LE(distance(model, global.model), 0.1 * distance(model, even.model));
    // Groups compete with channels: all that repeats is as much as 2 x 16 channels and 2 groups.
    const auto all = static_cast<double>(parameters(model));
    const double stays = (all - 2 * (16 * 48 + 384)) / all;
    const Compression both = narrowed(
        model, fmt::format("parameters={} attention=auto allocation=global multiple=8 bias=no ridge=1e-6",
                           stays + 1e-9));
    EXPECT_EQ(both.model.config.ffs, (std::vector<int64_t>{32, 16, 16, 32}));
    EXPECT_EQ(both.model.config.heads_kv, (std::vector<int64_t>{2, 1, 1, 2}));
}

TEST(Narrow, KeepsWithinABudgetOfParameters) {
    const Model model = random_model();
    for (const char* allocation : {"uniform", "global"}) {
        const auto settings = fmt::format("parameters=0.85 multiple=2 allocation={}", allocation);
        const Model out = narrowed(model, settings).model;
        const auto part = static_cast<double>(parameters(out)) / static_cast<double>(parameters(model));
        EXPECT_LE(part, 0.85);
        EXPECT_GT(part, 0.80);
        for (const int64_t width : out.config.ffs) EXPECT_EQ(width % 2, 0);
    }
    EXPECT_EQ(code_of([&] { narrowed(model, "parameters=0.1"); }, "parameters"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { narrowed(model, "attention=2"); }, "attention"), ErrorCode::usage);
    EXPECT_EQ(code_of([&] { narrowed(model, "attention=auto allocation=uniform"); }, "allocation"),
              ErrorCode::usage);
}

// The model without the same channels, and nothing solved.
Model cut_alone(const Model& model, const Compression& narrowed) {
    Model out = model;
    std::vector<Requantized> requantized;
    const nlohmann::json details = details_of(narrowed);
    for (const auto& entry : details.at("modules")) {
        if (!entry.contains("gone")) continue;
        const auto layer = entry.at("layer").get<size_t>();
        const auto gone = entry.at("gone").get<std::vector<int64_t>>();
        std::vector<int64_t> kept;
        for (int64_t c = 0; c < entry.at("parts").get<int64_t>(); ++c) {
            if (std::find(gone.begin(), gone.end(), c) == gone.end()) kept.push_back(c);
        }
        keep_channels(out, {layer}, kept, requantized);
    }
    return out;
}

TEST(Narrow, BringsEveryFamilyNearerThanTheCutAlone) {
    for (const std::string& name : fixture_decoders()) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        const std::string step = "narrow ratio=0.25 multiple=1 allocation=uniform";
        if (has_experts(model)) {
            if (!model.config.experts.empty()) continue;  // in some layers only
            EXPECT_EQ(code_of([&] { planned(model, {step}); }, "experts"), ErrorCode::unsupported);
            continue;
        }
        const Compression solved = calibrated(model, {step}, random_text(model, 32, 48));
        const Compression plan = planned(model, {step});
        EXPECT_EQ(plan.model.tensors.size(), solved.model.tensors.size());
        for (const auto& [tensor, planned_tensor] : plan.model.tensors) {
            EXPECT_EQ(planned_tensor.shape, solved.model.tensor(tensor).shape) << tensor;
            EXPECT_EQ(planned_tensor.type, solved.model.tensor(tensor).type) << tensor;
        }
        const Model cut = cut_alone(model, solved);
        EXPECT_EQ(solved.model.config.ffs, cut.config.ffs);
        EXPECT_LT(distance(model, solved.model), distance(model, cut));
    }
}

TEST(Narrow, FilesAndStockExportHaveTheWidth) {
    const TempFolder folder;
    const Model model = random_model();
    const Model even = narrowed(model, "ratio=0.25 multiple=8 allocation=uniform").model;
    save_model(even, folder / "even.gguf", false);
    expect_identical(load_model(folder / "even.gguf"), even);
    const Model stock = for_stock(even).model;
    EXPECT_EQ(stock.config.n_ff, 24);
    EXPECT_TRUE(stock.config.ffs.empty());
    EXPECT_EQ(stock.metadata.integer("llama.feed_forward_length"), 24);
    EXPECT_EQ(parameters(stock), parameters(even));
    EXPECT_EQ(distance(stock, even), 0);
}

TEST(Narrow, KeepsTheTypeOfQuantizedWeights) {
    const SmallShape shape{
        .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 96, .vocab = 24};
    const Model model =
        quantize_model(small_model(shape, scattered_small), {DType::Q8_0, DType::Q8_0, 1}).model;
    const Model out = narrowed(model, "ratio=0.34 allocation=uniform bias=no").model;
    EXPECT_EQ(out.config.ffs, (std::vector<int64_t>{32, 32}));
    for (const auto& [name, tensor] : out.tensors) {
        if (tensor.rows() > 1) {
            EXPECT_EQ(tensor.type, DType::Q8_0) << name;
        }
    }
}

TEST(Narrow, LeavesSharedFfnsToOthers) {
    Model model = random_model();
    for (const Slot slot : {Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down})
        model.topology.layers[2][slot] = model.topology.layers[1][slot];
    model.drop_unreferenced();
    EXPECT_EQ(code_of([&] { narrowed(model, "ratio=0.5 multiple=1"); }, "one FFN"), ErrorCode::unsupported);
    EXPECT_EQ(narrowed(model, "ratio=0.5 multiple=1 layers=0,3 allocation=uniform").model.config.ffs,
              (std::vector<int64_t>{16, 32, 32, 16}));
}

}  // namespace
}  // namespace refold
