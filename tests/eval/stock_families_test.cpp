// What `export --to gguf` writes gives the same logits in stock llama.cpp.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "core/error.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "eval/stock.h"

namespace refold {
namespace {

struct Case {
    const char* name;
    size_t tokens;  // Mistral's window, which llama.cpp ignores, is 32
};

class StockFamilies : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, StockFamilies,
                         testing::Values(Case{"llama_gqa", 96}, Case{"llama_bf16_sharded", 96},
                                         Case{"mistral", 32}, Case{"qwen2", 96}, Case{"gemma", 96},
                                         Case{"gemma2", 96}, Case{"gemma3", 96}, Case{"gpt2_hub", 96},
                                         Case{"gpt_neox", 96}, Case{"gpt_neox_seq", 96}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(StockFamilies, LogitsAreEqual) {
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/hf/" + GetParam().name);
    const TempFolder folder;
    save_model(for_stock(model).model, folder / "stock.gguf", false);
    const auto tokens = random_tokens(GetParam().tokens, model.config.n_vocab, 5);
    StockLlama stock(folder / "stock.gguf",
                     {.threads = 2, .context = 128, .kv_f32 = true, .flash_attention = false});
    const auto ours = all_logits(model, tokens, {.threads = 2, .f32 = true});
    // llama.cpp's GELU goes through half floats (and is the tanh form for GPT-NeoX); its products with BF16
    // round the activations.
    const double tolerance = model.tensors.at("token_embd.weight").type == DType::BF16 ? 0.2 : 0.05;
    EXPECT_LE(largest_difference(ours, stock.evaluate_all(tokens)), tolerance);
    // Its file is what we read back.
    const auto again = all_logits(load_model(folder / "stock.gguf"), tokens, {.threads = 2, .f32 = true});
    EXPECT_LE(largest_difference(ours, again), 1e-4);
}

TEST(StockFamilies, EncodersLoad) {
    for (const auto& [model, tokenizer] : {std::pair{"bert_hub", "wordpiece_bert"},
                                           {"bert_encoder", "wordpiece_bert_cased"},
                                           {"roberta", "bpe_roberta"}}) {
        const TempFolder folder;
        const std::string fixtures = REFOLD_FIXTURES;
        for (const auto& from : {fixtures + "/hf/" + model, fixtures + "/tokenizers/" + tokenizer})
            std::filesystem::copy(from, folder / "model", std::filesystem::copy_options::overwrite_existing);
        save_model(for_stock(load_model(folder / "model")).model, folder / "stock.gguf", false);
        EXPECT_NO_THROW(StockLlama(folder / "stock.gguf", {.threads = 2, .context = 128})) << model;
    }
}

TEST(StockFamilies, WhatLlamaCannotExpressIsNamed) {
    const auto message = [](const char* name) -> std::string {
        try {
            for_stock(load_model(std::string(REFOLD_FIXTURES) + "/hf/" + name));
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::unsupported);
            return error.what();
        }
        return "no error";
    };
    EXPECT_NE(message("gptj").find("stock llama.cpp cannot express"), std::string::npos);
    EXPECT_NE(message("baichuan_7b").find("3 layers"), std::string::npos);
}

}  // namespace
}  // namespace refold
