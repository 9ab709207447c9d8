// Rows of embedding and output in types of their own: which rows, rounding, files, both engines, export, what
// is refused.
#include "compress/quantization/row_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "io/gguf.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/metadata_keys.h"
#include "model/quantized.h"
#include "model/row_parts.h"
#include "model/save.h"
#include "model/stock.h"
#include "model/validate.h"

namespace refold {
namespace {

const SmallShape kShape{
    .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 16, .embd = 64, .ff = 96, .vocab = 96};
const std::string kStep = "quantize type=keep types=token_embd=q8_0:16,q4_0:32,q2_k";

Model tied_model() { return small_model(kShape, scattered_small); }

Model random_model() {
    Model model = tied_model();
    model.tensors["output.weight"] = model.tensor("token_embd.weight");
    model.topology.globals[Slot::output] = Dense{"output.weight"};
    return model;
}

// Token 95 is used most, then 94, and so on.
Calibration text_of(const Model& model) {
    Calibration text = random_text(model, 32, 32);
    text.occurrences.resize(96);
    for (size_t id = 0; id < 96; ++id) text.occurrences[id] = static_cast<int64_t>(1 + id);
    return text;
}

Compression compressed(const Model& model, const std::string& step) {
    static std::vector<std::unique_ptr<Work>> kept;
    static std::vector<std::unique_ptr<Calibration>> texts;
    kept.push_back(std::make_unique<Work>());
    texts.push_back(std::make_unique<Calibration>(text_of(model)));
    return compress(model, recipe_of({step}), "test", *kept.back(), {texts.back().get(), 1});
}

std::vector<float> table_of(const Model& model, Slot slot = Slot::token_embd) {
    return materialize(model, model.topology.globals.at(slot), slot);
}

double row_error(const std::vector<float>& a, const std::vector<float>& b, size_t row) {
    double squares = 0;
    for (size_t i = row * 64; i < (row + 1) * 64; ++i)
        squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    return std::sqrt(squares);
}

const RowParts& parts_of(const Model& model, Slot slot = Slot::token_embd) {
    return std::get<RowParts>(model.topology.globals.at(slot));
}

TEST(RowTypes, UseIsEstimatedForTokensThatDoNotOccur) {
    const std::vector<int64_t> occurrences = {5, 0, 1, 3, 1};
    const auto use = expected_use(occurrences, 6);
    // Two of ten tokens occur once: so much goes to the two that never do.
    const std::vector<double> expected = {0.4, 0.1, 0.08, 0.24, 0.08, 0.1};
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(use[i], expected[i], 1e-12) << i;
    EXPECT_EQ(rows_by_use(occurrences, 6), (std::vector<int32_t>{0, 3, 2, 4, 1, 5}));
    for (const double one : expected_use({}, 4)) EXPECT_DOUBLE_EQ(one, 0.25);
    const std::vector<int64_t> once = {1, 1, 0};
    EXPECT_DOUBLE_EQ(expected_use(once, 3)[2], 0.5);
    const std::vector<int64_t> all = {3, 1};
    EXPECT_DOUBLE_EQ(expected_use(all, 2)[1], 0.25);
}

TEST(RowTypes, TokensThatTextUsesMostGetTheFinerTypes) {
    const Model model = random_model();
    for (const char* rounding : {" rounding=gptq", " rounding=nearest"}) {
        SCOPED_TRACE(rounding);
        const Model out = compressed(model, kStep + rounding).model;
        const RowParts& parts = parts_of(out);
        ASSERT_EQ(parts.parts.size(), 3U);
        const std::vector<std::pair<DType, int64_t>> expected = {
            {DType::Q8_0, 16}, {DType::Q4_0, 32}, {DType::Q2_K, 48}};
        for (size_t p = 0; p < 3; ++p) {
            EXPECT_EQ(out.tensor(parts.parts[p]).type, expected[p].first);
            EXPECT_EQ(out.tensor(parts.parts[p]).rows(), expected[p].second);
        }
        EXPECT_FALSE(out.tensors.contains("token_embd.weight"));
        const auto before = table_of(model), after = table_of(out);
        double worst_fine = 0, worst_middle = 0, least_coarse = 1e9;
        for (size_t row = 0; row < 96; ++row) {
            const double error = row_error(before, after, row);
            if (row >= 80)
                worst_fine = std::max(worst_fine, error);
            else if (row >= 48)
                worst_middle = std::max(worst_middle, error);
            else
                least_coarse = std::min(least_coarse, error);
        }
        EXPECT_LT(10 * worst_fine, least_coarse);
        EXPECT_LT(worst_middle, least_coarse);
        // Nothing else changed.
        EXPECT_EQ(table_of(out, Slot::output), table_of(model, Slot::output));
    }
}

TEST(RowTypes, ATiedTableIsStoredOnce) {
    const Model out = compressed(tied_model(), kStep).model;
    EXPECT_EQ(parts_of(out), parts_of(out, Slot::output));
    EXPECT_EQ(out.tensors.contains("output.weight"), false);
}

// In float32 the engine computes what whole tables do; as they are stored, what rounded inputs allow.
TEST(RowTypes, FilesAndBothEngines) {
    const TempFolder folder;
    for (const Model& model : {random_model(), tied_model()}) {
        const Model made = compressed(model, kStep).model;
        save_model(made, folder / "x.gguf", true);
        const Model loaded = load_model(folder / "x.gguf");
        EXPECT_EQ(loaded.config.n_vocab, 96);
        EXPECT_EQ(loaded.topology, made.topology);
        EXPECT_EQ(table_of(loaded), table_of(made));
        Model whole = made;
        for (auto& [slot, expression] : whole.topology.globals) {
            if (!std::holds_alternative<RowParts>(expression)) continue;
            whole.tensors["whole"] = {
                DType::F32, {64, 96}, {}, [&made] { return quantize(DType::F32, table_of(made), 64); }};
            expression = Dense{"whole"};
        }
        const auto tokens = random_tokens(30, 96, 77);
        const auto logits = [&](const Model& of, bool f32) {
            return all_logits(of, tokens, {.threads = 2, .context = 64, .f32 = f32});
        };
        const auto expected = logits(whole, true), exact = logits(loaded, true),
                   stored = logits(loaded, false);
        ASSERT_EQ(exact.size(), expected.size());
        double distance = 0, size = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_NEAR(exact[i], expected[i], 1e-4);
            distance += std::pow(static_cast<double>(stored[i]) - static_cast<double>(expected[i]), 2);
            size += std::pow(static_cast<double>(expected[i]), 2);
        }
        EXPECT_LT(std::sqrt(distance / size), 0.03);
    }
}

TEST(RowTypes, StockLlamaCppGetsOneTable) {
    const Model made = compressed(tied_model(), kStep).model;
    const Model stock = for_stock(made).model;
    EXPECT_EQ(stock.tensor("token_embd.weight").rows(), 96);
    EXPECT_EQ(stock.tensor("token_embd.weight").type, DType::Q8_0);
    const auto before = table_of(made), after = table_of(stock);
    for (size_t row = 0; row < 96; ++row) EXPECT_LT(row_error(before, after, row), 0.02) << row;
    EXPECT_FALSE(is_stock(made));
}

TEST(RowTypes, WhatCannotBeIsRefused) {
    const Model model = random_model();
    for (const auto& [types, part] : std::vector<std::pair<std::string, std::string>>{
             {"token_embd=q8_0:16", "all other rows"},
             {"token_embd=q8_0:16,", "all other rows"},
             {"token_embd=q8_0,", "all other rows"},
             {"token_embd=q8_0:16,q4_0,", "all other rows"},
             {"token_embd=q8_0:9223372036854775807,q4_0", "TYPE:ROWS"},
             {"token_embd=q8_0,q4_0", "all other rows"},
             {"token_embd=q8_0:0,q4_0", "TYPE:ROWS"},
             {"token_embd=q8_0:x,q4_0", "TYPE:ROWS"},
             {"token_embd=q8_0:96,q4_0", "of 96 in all"},
             {"token_embd=q9:16,q4_0", "unknown type"},
             {"ffn.down=q8_0:16,q4_0", "only rows of embedding and output"},
             {"token_embd=q8_0:1,q8_0:1,q8_0:1,q8_0:1,q8_0:1,q8_0:1,q8_0:1,q8_0:1,q4_0", "at most 8"}}) {
        SCOPED_TRACE(types);
        expect_error(ErrorCode::usage, {part},
                     [&] { compressed(model, "quantize type=keep types=" + types); });
        expect_error(ErrorCode::usage, {part},
                     [&] { plan(model, recipe_of({"quantize type=keep types=" + types})); });
    }
    const Model made = compressed(model, kStep).model;
    expect_error(ErrorCode::unsupported, {"token_embd", "no method changes"},
                 [&] { compressed(made, "drop layers=0"); });
}

// Parts of different lengths are different results.
TEST(RowTypes, AWorkFolderServesOtherCounts) {
    const Model model = random_model();
    const Calibration text = text_of(model);
    Work work;
    for (const char* types :
         {"token_embd=q8_0:16,q4_0", "token_embd=q8_0:32,q4_0", "token_embd=q8_0:16,q4_0:16,q4_1"}) {
        SCOPED_TRACE(types);
        const std::string step = std::string("quantize type=keep types=") + types;
        const Model shared = compress(model, recipe_of({step}), "test", work, {&text, 1}).model;
        EXPECT_EQ(table_of(shared), table_of(compressed(model, step).model));
    }
}

TEST(RowTypes, AnImportanceMatrixIsThatOfTheTable) {
    const Model model = random_model();
    const std::string rest = " types=output=q8_0:16,iq2_s rounding=imatrix";
    const Model made = compressed(model, "quantize type=keep" + rest).model;
    EXPECT_EQ(made.tensor(parts_of(made, Slot::output).parts[1]).type, DType::IQ2_S);
}

// The size of a dry run is that of the result.
TEST(RowTypes, ADryRunHasTheShapes) {
    const Model model = tied_model();
    const Model planned = plan(model, recipe_of({kStep})).model, made = compressed(model, kStep).model;
    EXPECT_EQ(planned.topology, made.topology);
    for (const auto& [name, tensor] : made.tensors) {
        EXPECT_EQ(planned.tensor(name).shape, tensor.shape) << name;
        EXPECT_EQ(planned.tensor(name).type, tensor.type) << name;
    }
}

TEST(RowTypes, FilesThatLie) {
    const TempFolder folder;
    const Model made = compressed(random_model(), kStep).model;
    save_model(made, folder / "made.gguf", false);
    const auto refuse = [&](const std::string& what, const std::vector<float>& ids) {
        const auto load = [&] {
            const auto file = GgufFile::open(folder / "made.gguf");
            std::vector<GgufOutputTensor> tensors;
            for (const auto& tensor : file->tensors()) {
                const bool lies = tensor.name == parts_of(made).ids;
                const auto bytes = lies ? std::as_bytes(std::span(ids)) : tensor.data;
                tensors.push_back({tensor.name, tensor.type,
                                   lies ? std::vector{static_cast<int64_t>(ids.size())} : tensor.shape,
                                   [bytes](const auto& sink) { sink(bytes); }});
            }
            write_gguf(folder / "x.gguf", true, file->metadata(), tensors);
            load_model(folder / "x.gguf");
        };
        expect_error(ErrorCode::input, {what}, load);
    };
    std::vector<float> ids(48);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<float>(i);
    refuse("expected [48, 1]", {0, 1, 2});
    for (const float bad : {-1.0F, 96.0F, 1.5F, INFINITY, NAN}) {
        ids[7] = bad;
        refuse("none of 96 rows", ids);
    }
    ids[7] = 8;
    refuse("there already", ids);
    Model twice = made;
    auto& parts = std::get<RowParts>(twice.topology.globals.at(Slot::token_embd));
    parts.parts[1] = parts.parts[2];
    expect_error(ErrorCode::input, {"twice"}, [&] { validate(twice); });
    parts.parts.assign(9, "x");
    expect_error(ErrorCode::input, {"at most 8"}, [&] { validate(twice); });
}

}  // namespace
}  // namespace refold
