// Files for stock llama.cpp: libllama loads them and computes what the engine does.
#include "eval/stock.h"

#include <gtest/gtest.h>

#include "compress/calibrated.h"
#include "compress/compress.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "fit/fit.h"
#include "fit/plan_file.h"
#include "model/load.h"
#include "model/save.h"
#include "model/stock.h"

namespace refold {
namespace {

const std::string kHf = std::string(REFOLD_FIXTURES) + "/hf/";

// Between the smallest and the largest file, so that there are several types.
uint64_t halfway(const Model& model) {
    const auto tensors = fit_tensors(model, RowLayout::whole_blocks);
    std::vector<size_t> small, large;
    for (const FitTensor& tensor : tensors) {
        small.push_back(0);
        large.push_back(tensor.candidates.size() - 1);
    }
    const auto bytes = [&](const std::vector<size_t>& chosen) {
        const Recipe recipe = quantize_recipe(model, types_option(tensors, chosen), RowLayout::whole_blocks);
        return file_bytes(model, recipe, tensors.size());
    };
    return (bytes(small) + bytes(large)) / 2;
}

class StockFit : public testing::TestWithParam<const char*> {};
// Optional biases (Llama), none (Qwen), refused ones (Gemma), required ones and fused Q, K, V (the others).
INSTANTIATE_TEST_SUITE_P(Families, StockFit,
                         testing::Values("llama_gqa", "qwen2", "gemma", "gemma2", "gemma3", "gpt_neox",
                                         "gpt2_hub"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(StockFit, LibllamaComputesTheSame) {
    const Model source = load_model(kHf + GetParam());
    const TempFolder folder;
    // As export does: a Gemma whose queries have another scale is no stock model.
    save_model(for_stock(source).model, folder / "source.gguf", false);
    const Model model = load_model(folder / "source.gguf");
    ASSERT_TRUE(is_stock(model));
    const Calibration text = random_text(model, 16, 32);
    Work work(folder / "work");
    Fit fit(model, text, work,
            {.probe_tokens = 64,
             .layout = RowLayout::whole_blocks,
             .threads = 1,
             .texts = {},
             .version = "test"});
    const Fitted fitted = fit.fit({.file_bytes = halfway(model)});
    save_model(fitted.compression.model, folder / "small.gguf", false);

    const Model small = load_model(folder / "small.gguf");
    EXPECT_FALSE(small.metadata.has("refold.topology"));
    std::set<DType> types;
    for (const auto& [name, tensor] : small.tensors) {
        EXPECT_EQ(tensor.row_elements() % block_elements(tensor.type), 0) << name;
        if (!is_float(tensor.type)) types.insert(tensor.type);
    }
    EXPECT_GT(types.size(), 1U);
    const auto tokens = random_tokens(60, model.config.n_vocab, 5);
    const auto ours = all_logits(small, tokens, {.threads = 1});
    StockLlama stock(folder / "small.gguf",
                     {.threads = 1, .context = 128, .kv = KvType::f32, .flash_attention = false});
    const auto theirs = stock.evaluate_all(tokens);
    EXPECT_LT(scaled_difference(theirs, ours), 0.05);
    // Far less than the quantization itself changes.
    const auto original = all_logits(model, tokens, {.threads = 1, .f32 = true});
    EXPECT_LT(scaled_difference(theirs, ours), 0.5 * scaled_difference(original, ours));
}

// llama.cpp's Gemma has no bias after the attention, which quantize would add.
TEST(StockFit, BiasesThatLlamaCppDoesNotReadAreNotMade) {
    const Model gemma = load_model(kHf + "gemma3"), llama = load_model(kHf + "llama_gqa");
    const auto biases = [](const Model& model, RowLayout layout) {
        const Model out = plan(model, quantize_recipe(model, "attn.o=q8_0 ffn.down=q8_0", layout)).model;
        return out.topology.has(0, Slot::attn_o_bias) + out.topology.has(0, Slot::ffn_down_bias);
    };
    EXPECT_EQ(biases(gemma, RowLayout::or_folded), 1);
    EXPECT_EQ(biases(gemma, RowLayout::whole_blocks), 0);
    EXPECT_EQ(biases(llama, RowLayout::whole_blocks), 2);

    const Model biased = plan(gemma, quantize_recipe(gemma, "attn.o=q8_0", RowLayout::or_folded)).model;
    EXPECT_EQ(code_of([&] { for_stock(biased); }, "attn.o.bias"), ErrorCode::unsupported);
}

TEST(StockFit, OtherModelsAreNoStockModels) {
    EXPECT_TRUE(is_stock(load_model(kHf + "llama_gqa")));
    Model shared = load_model(kHf + "llama_gqa");
    shared.topology.layers[1][Slot::ffn_up] = shared.topology.layers[0][Slot::ffn_up];
    shared.drop_unreferenced();
    EXPECT_FALSE(is_stock(shared));
    EXPECT_FALSE(is_stock(load_model(kHf + "gemma3")));  // its scale of queries is not the usual one
}

TEST(StockFit, SizesAreCheckedWithoutMeasuring) {
    const Model model = load_model(kHf + "llama_gqa");
    const auto sizes = [&](std::vector<uint64_t> bytes) {
        return [&model, bytes = std::move(bytes)] { check_sizes(model, RowLayout::whole_blocks, bytes); };
    };
    EXPECT_EQ(code_of(sizes({uint64_t{1} << 20, 2048}), "no choice of types makes 2.0 KiB; the smallest"),
              ErrorCode::usage);
    EXPECT_NO_THROW(sizes({uint64_t{1} << 20})());
    Model narrow = load_model(kHf + "qwen3");  // 48 and 44 numbers a row, but for these
    for (Slots& layer : narrow.topology.layers) layer.erase(Slot::attn_o);
    EXPECT_EQ(code_of([&] { check_sizes(narrow, RowLayout::whole_blocks, {}); }, "no matrix whose type"),
              ErrorCode::unsupported);
}

}  // namespace
}  // namespace refold
