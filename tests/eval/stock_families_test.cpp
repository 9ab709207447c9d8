// The output of `export --to gguf` gives the same logits in stock llama.cpp.
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "engine/synthetic_models.h"
#include "eval/stock.h"
#include "model/export/lora.h"
#include "model/export/nanbeige.h"
#include "model/families/edited_config.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/low_rank_model.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/stock.h"
#include "model/without_sharing.h"
#include "text/llama_log.h"

namespace refold {
namespace {

// Refused (see WhatLlamaCannotExpressIsNamed), or encoders, which have a test of their own.
const std::set<std::string> kOtherwiseTested = {
    "albert",        "albert_hub",       "baichuan_13b", "baichuan_7b", "bert_encoder", "bert_hub",
    "bert_score",    "gemma3n",          "gptj",         "ouro",        "qwen3_moe",    "roberta",
    "roberta_score", "xlm_roberta_score"};

std::vector<std::string> decoders() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(REFOLD_FIXTURES) + "/hf")) {
        const std::string name = entry.path().filename();
        if (!kOtherwiseTested.contains(name)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

class StockFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, StockFamilies, testing::ValuesIn(decoders()),
                         [](const auto& test) { return test.param; });

TEST_P(StockFamilies, LogitsAreEqual) {
    Model model = load_model(std::string(REFOLD_FIXTURES) + "/hf/" + GetParam());
    if (GetParam() == "gpt_oss") {  // as llama.cpp rounds it
        model.topology.globals.erase(Slot::rope_freqs);
        model.drop_unreferenced();
        model.metadata.erase("gpt-oss.rope.scaling.yarn_truncate");
        model.config = model.family->read_config(model.metadata);
        model = quantize_model(model, {DType::F32, std::nullopt, 1})
                    .model;  // rounding would choose other experts
    }
    const TempFolder folder;
    const StockModel exported = for_stock(model);
    save_model(exported.model, folder / "stock.gguf", false);
    // A note says that llama.cpp ignores the window.
    const auto tokens = random_tokens(
        exported.note.empty() ? 96 : static_cast<size_t>(model.config.window(0)), model.config.n_vocab, 5);
    StockLlama stock(folder / "stock.gguf",
                     {.threads = 1, .context = 128, .kv = KvType::f32, .flash_attention = false});
    const auto ours = all_logits(model, tokens, {.threads = 1, .f32 = true});
    // llama.cpp's GELU uses half floats (and the tanh form for GPT-NeoX), and its products with BF16 round
    // the activations.
    const double tolerance = model.tensors.at("token_embd.weight").type == DType::BF16 ? 0.2 : 0.05;
    EXPECT_LE(largest_difference(ours, stock.evaluate_all(tokens)), tolerance);
    // The exported file itself runs here, too.
    const auto again = all_logits(load_model(folder / "stock.gguf"), tokens, {.threads = 1, .f32 = true});
    EXPECT_LE(largest_difference(ours, again), 1e-4);
}

// Random weights in the sizes that llama.cpp knows by heart. What GELUs make is added with small gains: so
// deep a random model would make much of llama.cpp's half floats.
Model gemma3n_of_stock_sizes() {
    Model model = with_config("gemma3n", [](nlohmann::json& c) {
        for (const char* field : {"layer_types", "activation_sparsity_pattern"}) c.erase(field);
        for (const auto& [field, value] : {std::pair{"hidden_size", 64},
                                           {"head_dim", 32},
                                           {"intermediate_size", 512},
                                           {"num_attention_heads", 2},
                                           {"num_key_value_heads", 1},
                                           {"num_hidden_layers", 25},
                                           {"num_kv_shared_layers", 5},
                                           {"altup_num_inputs", 4},
                                           {"laurel_rank", 64},
                                           {"hidden_size_per_layer_input", 256},
                                           {"vocab_size", 96},
                                           {"vocab_size_per_layer_input", 96},
                                           {"final_logit_softcapping", 30}})
            c[field] = value;
    });
    model.shapes_only = false;
    RandomWeights random(7);
    for (auto& [name, tensor] : model.tensors) {
        const std::vector<int64_t> shape = tensor.shape;
        const bool small = name.ends_with("post_ffw_norm.weight") || name.ends_with(".post_norm.weight");
        const float gain = shape.size() > 1 ? 0.0F : small ? 0.03F : 1.0F;
        const float spread =
            shape.size() > 1 ? std::sqrt(3.0F / static_cast<float>(tensor.row_elements())) : 0.2F * gain;
        tensor = random.tensor({tensor.row_elements(), tensor.rows()}, gain, spread);
        tensor.shape = shape;
    }
    return model;
}

TEST(StockFamilies, Gemma3nGivesTheSameLogits) {
    const Model model = gemma3n_of_stock_sizes();
    const TempFolder folder;
    save_model(for_stock(model).model, folder / "stock.gguf", false);
    const auto tokens = random_tokens(96, model.config.n_vocab, 5);
    StockLlama stock(folder / "stock.gguf",
                     {.threads = 1, .context = 128, .kv = KvType::f32, .flash_attention = false});
    const EngineOptions options{.threads = 1, .f32 = true};
    const auto ours = all_logits(model, tokens, options);
    EXPECT_EQ(ours, all_logits(load_model(folder / "stock.gguf"), tokens, options));
    // It takes the deviation of gates over n - 1 channels.
    Model theirs = model;
    const auto n = static_cast<float>(model.config.n_ff);
    for (float& cut : theirs.config.ffn_cuts) cut *= std::sqrt(n / (n - 1));
    const auto expected = all_logits(theirs, tokens, options);
    EXPECT_LE(scaled_difference(stock.evaluate_all(tokens), expected), 0.005);
    // Keys and values that nothing reads may be missing, but not for llama.cpp.
    Model fewer = model;
    fewer.tensors.erase("blk.24.attn_k.weight");
    save_model(for_stock(fewer).model, folder / "fewer.gguf", false);
    StockLlama again(folder / "fewer.gguf",
                     {.threads = 1, .context = 128, .kv = KvType::f32, .flash_attention = false});
    EXPECT_LE(scaled_difference(again.evaluate_all(tokens), expected), 0.005);
    fewer.config.ffn_cuts[3] = -INFINITY;
    EXPECT_THROW(for_stock(fewer), Error);
}

// Hidden states [tokens, n_embd] of an encoder in libllama.
std::vector<float> stock_hidden(const std::string& path, std::vector<int32_t> tokens) {
    llama_model* model = llama_model_load_from_file(path.c_str(), llama_model_default_params());
    if (model == nullptr) throw std::runtime_error("libllama cannot load " + path);
    llama_context_params params = llama_context_default_params();
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    params.n_ctx = params.n_batch = params.n_ubatch = 128;
    llama_context* context = llama_init_from_model(model, params);
    const auto width = static_cast<size_t>(llama_model_n_embd(model)), count = tokens.size();
    llama_batch batch = llama_batch_init(static_cast<int32_t>(count), 0, 1);
    for (size_t t = 0; t < count; ++t) {
        batch.token[t] = tokens[t];
        batch.pos[t] = static_cast<int32_t>(t);
        batch.n_seq_id[t] = 1;
        batch.seq_id[t][0] = 0;
        batch.logits[t] = 1;
    }
    batch.n_tokens = static_cast<int32_t>(count);
    std::vector<float> out;
    if (llama_encode(context, batch) == 0) {
        for (size_t t = 0; t < count; ++t) {
            const float* row = llama_get_embeddings_ith(context, static_cast<int32_t>(t));
            out.insert(out.end(), row, row + width);
        }
    }
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return out;
}

TEST(StockFamilies, EncodersGiveTheSameHiddenStates) {
    using std::filesystem::copy_options;
    constexpr auto kInto = copy_options::recursive | copy_options::overwrite_existing;
    for (const auto& [name, tokenizer] : {std::pair{"bert_hub", "wordpiece_bert"},
                                          {"bert_encoder", "wordpiece_bert_cased"},
                                          {"roberta", "bpe_roberta"},
                                          {"xlm_roberta_score", "unigram_xlm_roberta"}}) {
        const TempFolder folder;
        const std::string fixtures = REFOLD_FIXTURES;
        for (const auto& from : {fixtures + "/hf/" + name, fixtures + "/tokenizers/" + tokenizer})
            std::filesystem::copy(from, folder / "model", kInto);
        const Model model = load_model(folder / "model");
        save_model(for_stock(model).model, folder / "stock.gguf", false);
        init_llama();
        auto tokens = random_tokens(40, model.config.n_vocab, 6);
        std::replace(tokens.begin(), tokens.end(), model.config.padding_token.value_or(-1), 7);
        SingleSequence sequence(model, {.threads = 1, .context = 64, .f32 = true});
        EXPECT_LE(largest_difference(sequence.encode({tokens, {}, {}}).last_hidden_state,
                                     stock_hidden(folder / "stock.gguf", tokens)),
                  0.05)
            << name;
    }
}

const std::string kHf = std::string(REFOLD_FIXTURES) + "/hf/";
const StockOptions kStockF32{.threads = 1, .context = 128, .kv = KvType::f32, .flash_attention = false};

// A looped block as architecture "nanbeige", with Llama 3's frequency factors and with an untied output.
TEST(StockLoops, LogitsAreEqual) {
    for (const std::string& path : {kHf + "llama_gqa", std::string(REFOLD_FIXTURES) + "/llama/model.gguf"}) {
        for (const size_t loops : {2, 4}) {
            const Model model = looped(load_model(path), loops);
            const LoopedStock exported = looped_stock(model);
            ASSERT_TRUE(exported.stock) << exported.reason;
            const TempFolder folder;
            save_model(exported.stock->model, folder / "looped.gguf", false);
            save_model(for_stock(model).model, folder / "expanded.gguf", false);
            EXPECT_LT(std::filesystem::file_size(folder / "looped.gguf"),
                      std::filesystem::file_size(folder / "expanded.gguf"));
            const auto tokens = random_tokens(96, model.config.n_vocab, 5);
            const auto ours = all_logits(model, tokens, {.threads = 1, .f32 = true});
            StockLlama stock(folder / "looped.gguf", kStockF32);
            EXPECT_LE(largest_difference(ours, stock.evaluate_all(tokens)), 1e-3) << path << loops;
            // It is read back in loops, and can be written out again.
            const Model back = load_model(folder / "looped.gguf");
            EXPECT_EQ(back.topology.loops, static_cast<int64_t>(loops));
            EXPECT_LE(largest_difference(all_logits(back, tokens, {.threads = 1, .f32 = true}), ours), 1e-5);
            save_model(for_stock(back).model, folder / "again.gguf", false);
            EXPECT_LE(
                largest_difference(
                    all_logits(load_model(folder / "again.gguf"), tokens, {.threads = 1, .f32 = true}), ours),
                1e-5);
            EXPECT_TRUE(looped_stock(back).stock);
            save_model(back, folder / "native.gguf", false);
            EXPECT_EQ(load_model(folder / "native.gguf").topology, back.topology);
            // Token by token: every loop has keys and values of its own.
            stock.clear();
            std::span<const float> last;
            for (size_t t = 0; t < 12; ++t) last = stock.evaluate({&tokens[t], 1});
            EXPECT_LE(largest_difference(std::span(ours).subspan(11 * last.size(), last.size()), last), 1e-3);
        }
    }
}

TEST(StockLoops, FinalNormAfterEveryLoop) {
    const TempFolder folder;
    LoopedStock exported = looped_stock(looped(load_model(kHf + "llama_gqa"), 2));
    ASSERT_TRUE(exported.stock) << exported.reason;
    save_model(exported.stock->model, folder / "once.gguf", false);
    exported.stock->model.metadata.set("nanbeige.skip_loop_final_norm", GgufValue::boolean(false));
    save_model(exported.stock->model, folder / "every.gguf", false);

    const Model every = load_model(folder / "every.gguf");
    const auto tokens = random_tokens(48, every.config.n_vocab, 5);
    const auto logits_of = [&](const Model& model) {
        return all_logits(model, tokens, {.threads = 1, .f32 = true});
    };
    const auto ours = logits_of(every);
    StockLlama stock(folder / "every.gguf", kStockF32);
    EXPECT_LE(largest_difference(ours, stock.evaluate_all(tokens)), 1e-3);
    EXPECT_GT(largest_difference(ours, logits_of(load_model(folder / "once.gguf"))), 0.1);
    // It goes out again as it came, and not to what has no such norms.
    const LoopedStock again = looped_stock(every);
    ASSERT_TRUE(again.stock) << again.reason;
    save_model(again.stock->model, folder / "again.gguf", false);
    EXPECT_EQ(logits_of(load_model(folder / "again.gguf")), ours);
    save_model(every, folder / "native.gguf", false);
    EXPECT_EQ(load_model(folder / "native.gguf").topology, every.topology);
    EXPECT_THROW(for_stock(every), Error);
    EXPECT_THROW(save_hf_model(every, folder / "hf", {}), Error);
    // A file without that norm is refused.
    std::ifstream in(folder / "every.gguf", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    bytes.replace(bytes.find("output_norm.weight"), 1, "x");
    std::ofstream(folder / "none.gguf", std::ios::binary) << bytes;
    EXPECT_THROW(load_model(folder / "none.gguf"), Error);
}

// Logits [tokens, n_vocab] of a model with an adapter in libllama.
std::vector<float> adapted_logits(const std::string& base, const std::string& adapter,
                                  std::vector<int32_t> tokens) {
    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;
    llama_model* model = llama_model_load_from_file(base.c_str(), model_params);
    if (model == nullptr) throw std::runtime_error("libllama cannot load " + base);
    llama_adapter_lora* lora = llama_adapter_lora_init(model, adapter.c_str());
    std::vector<float> out;
    if (lora != nullptr) {
        llama_context_params params = llama_context_default_params();
        params.n_ctx = params.n_batch = params.n_ubatch = 128;
        params.type_k = params.type_v = GGML_TYPE_F32;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        llama_context* context = llama_init_from_model(model, params);
        float scale = 1;
        EXPECT_EQ(llama_set_adapters_lora(context, &lora, 1, &scale), 0);
        std::vector<int8_t> wanted(tokens.size(), 1);
        llama_batch batch{};
        batch.n_tokens = static_cast<int32_t>(tokens.size());
        batch.token = tokens.data();
        batch.logits = wanted.data();
        const auto width = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
        if (llama_decode(context, batch) == 0) {
            const float* logits = llama_get_logits(context);
            out.assign(logits, logits + width * tokens.size());
        }
        llama_free(context);
    }
    llama_model_free(model);
    return out;
}

TEST(StockLora, AdapterOnTheBaseComputesTheRelaxedModel) {
    for (const bool one_rank : {true, false}) {
        Model model = looped(load_model(kHf + "llama_gqa"), 2);
        for (size_t p = 0; p < model.topology.layers.size(); ++p) {
            for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o, Slot::ffn_gate,
                                    Slot::ffn_up, Slot::ffn_down})
                add_lora(model, p, slot, one_rank || slot != Slot::attn_k ? 4 : 2, 0.1F);
        }
        const TempFolder folder;
        const Model base = without_lora(model);
        save_model(for_stock(base).model, folder / "base.gguf", false);
        save_lora_gguf(model, folder / "adapter.gguf", false);
        init_llama();
        const auto tokens = random_tokens(60, model.config.n_vocab, 8);
        const EngineOptions options{.threads = 1, .f32 = true};
        const auto ours = all_logits(without_sharing(model), tokens, options);
        EXPECT_GT(largest_difference(ours, all_logits(base, tokens, options)), 0.1);
        EXPECT_LE(
            largest_difference(ours, adapted_logits(folder / "base.gguf", folder / "adapter.gguf", tokens)),
            1e-3);
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
    EXPECT_NE(message("gemma3n").find("the 3 residual streams"), std::string::npos);
    EXPECT_NE(message("gptj").find("stock llama.cpp cannot express"), std::string::npos);
    EXPECT_NE(message("qwen3_moe").find("which layers have experts"), std::string::npos);
    EXPECT_NE(message("ouro").find("the architecture"), std::string::npos);
    EXPECT_NE(message("albert").find("the architecture"), std::string::npos);
    EXPECT_NE(message("baichuan_7b").find("3 layers"), std::string::npos);
}

}  // namespace
}  // namespace refold
