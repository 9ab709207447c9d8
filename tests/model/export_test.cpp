// Exports of looped and low-rank models: contents of the files. eval/stock_families_test.cpp tests what
// llama.cpp computes from them.
#include "model/hf/export.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/temp_folder.h"
#include "io/safetensors.h"
#include "model/accounting.h"
#include "model/export/lora.h"
#include "model/export/nanbeige.h"
#include "model/load.h"
#include "model/low_rank_model.h"
#include "model/materialize.h"
#include "model/save.h"
#include "model/small_model.h"
#include "model/validate.h"

namespace refold {
namespace {

using nlohmann::json;

Model fixture_model(const std::string& name) {
    return load_model(std::string(REFOLD_FIXTURES) + "/hf/" + name);
}

std::vector<float> floats(const SafetensorsView& view) {
    std::vector<float> values;
    for (const int64_t n : view.shape)
        values.resize(std::max<size_t>(values.size(), 1) * static_cast<size_t>(n));
    dequantize(view.dtype == "F32" ? DType::F32 : DType::F16, view.data, values);
    return values;
}

std::string message(const auto& action, ErrorCode code) {
    try {
        action();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    return "no error";
}

// ---- looped ----

TEST(LoopedExport, HoldsTheBlockOnceAndItsRounds) {
    const Model model = looped(small_model({.layers = 6}, scattered), 3);
    const LoopedStock out = looped_stock(model);
    ASSERT_TRUE(out.stock) << out.reason;
    EXPECT_EQ(out.loops, 3);
    const TempFolder folder;
    save_model(out.stock->model, folder / "looped.gguf", false);
    const auto file = GgufFile::open(folder / "looped.gguf");
    const GgufMetadata& metadata = file->metadata();
    EXPECT_EQ(metadata.string("general.architecture"), "nanbeige");
    EXPECT_EQ(metadata.integer("nanbeige.block_count"), 2u);
    EXPECT_EQ(metadata.integer("nanbeige.num_loops"), 3u);
    EXPECT_TRUE(metadata.boolean("nanbeige.skip_loop_final_norm", false));
    EXPECT_EQ(metadata.integer("nanbeige.embedding_length"), 4u);
    EXPECT_FALSE(metadata.has("refold.topology"));
    EXPECT_FALSE(metadata.has("llama.block_count"));
    EXPECT_EQ(file->tensors().size(), 2u * 9 + 2);
    EXPECT_EQ(account(out.stock->model).model.parameters, account(model).model.parameters);
}

TEST(LoopedExport, SharingWithinTheBlockIsWrittenOut) {
    Model model = small_model({.layers = 4}, scattered);
    model.topology.layers[1][Slot::attn_q] =
        Heads{{{"blk.0.attn_q.weight", 1, 1}, {"blk.1.attn_q.weight", 0, 1}}};
    const auto expected = materialize(model, model.topology.at(1, Slot::attn_q), Slot::attn_q);
    model = looped(model, 2);
    const LoopedStock out = looped_stock(model);
    ASSERT_TRUE(out.stock) << out.reason;
    EXPECT_EQ(floats_of(out.stock->model, "blk.1.attn_q.weight"), expected);
}

TEST(LoopedExport, WhatIsNotABlockInRoundsIsNot) {
    const auto refused = [](const Model& model) {
        const LoopedStock out = looped_stock(model);
        EXPECT_FALSE(out.stock);
        return out.reason;
    };
    const Model dense = small_model({.layers = 4}, scattered);
    EXPECT_EQ(refused(dense), "");

    Model own_norms = looped(dense, 2);
    own_norms.tensors["blk.3.ffn_norm.weight"] = dense.tensor("blk.3.ffn_norm.weight");
    own_norms.topology.layers[3][Slot::ffn_norm] = Dense{"blk.3.ffn_norm.weight"};
    EXPECT_NE(refused(own_norms).find("not alike"), std::string::npos);

    Model relaxed = looped(dense, 2);
    add_lora(relaxed, 3, Slot::attn_v, 1);
    EXPECT_NE(refused(relaxed).find("LoRA"), std::string::npos);

    Model backwards = looped(dense, 2);
    std::swap(backwards.topology.layers[2], backwards.topology.layers[3]);
    EXPECT_NE(refused(backwards).find("order"), std::string::npos);

    EXPECT_NE(refused(looped(fixture_model("gemma2"), 2)).find("family 'gemma2'"), std::string::npos);
    Model biased = small_model({.layers = 4}, scattered);
    for (size_t p = 0; p < 4; ++p) {
        const std::string name = fmt::format("blk.{}.attn_q.bias", p);
        biased.tensors[name] = float_tensor({4}, {1, 2, 3, 4});
        biased.topology.layers[p][Slot::attn_q_bias] = Dense{name};
    }
    EXPECT_NE(refused(looped(biased, 2)).find("attn.q.bias"), std::string::npos);
}

// ---- LoRA ----

TEST(LoraExport, TheBaseIsTheModelWithoutTerms) {
    Model model = small_model({.layers = 2}, scattered);
    EXPECT_FALSE(has_lora(model));
    const Topology plain = model.topology;
    add_lora(model, 1, Slot::ffn_up, 2);
    EXPECT_TRUE(has_lora(model));
    const Model base = without_lora(model);
    EXPECT_EQ(base.topology, plain);
    EXPECT_EQ(base.tensors.size(), 2u * 9 + 2);
}

// In the folders for transformers and PEFT, base + B A equals the merged folder, row by row.
void expect_peft_merges(const Model& model) {
    const TempFolder folder;
    const AdapterExport done = save_peft(model, folder / "peft", false);
    save_hf_model(without_lora(model), folder / "base", {});
    save_hf_model(model, folder / "merged", {});
    const auto adapter = read_safetensors(folder / "peft/adapter_model.safetensors");
    const auto base = read_safetensors(folder / "base/model.safetensors"),
               merged = read_safetensors(folder / "merged/model.safetensors");
    EXPECT_EQ(adapter.tensors.size(), 2 * done.matrices);
    uint64_t parameters = 0;
    for (const auto& [key, a_view] : adapter.tensors) {
        parameters += a_view.data.size() / 4;
        const size_t end = key.find(".lora_A.weight");
        if (end == std::string::npos) continue;
        ASSERT_TRUE(key.starts_with("base_model.model."));
        const std::string module = key.substr(17, end - 17);
        const auto& b_view = adapter.tensors.at(key.substr(0, end) + ".lora_B.weight");
        const auto a = floats(a_view), b = floats(b_view);
        auto weight = floats(base.tensors.at(module + ".weight"));
        const auto expected = floats(merged.tensors.at(module + ".weight"));
        const auto rank = static_cast<size_t>(a_view.shape[0]), in = static_cast<size_t>(a_view.shape[1]);
        ASSERT_EQ(b_view.shape[1], a_view.shape[0]);
        float largest = 0, change = 0;
        for (size_t i = 0; i < weight.size(); ++i) {
            float sum = 0;
            for (size_t k = 0; k < rank; ++k) sum += b[i / in * rank + k] * a[k * in + i % in];
            largest = std::max(largest, std::abs(weight[i] + sum - expected[i]));
            change = std::max(change, std::abs(sum));
        }
        EXPECT_LE(largest, 1e-5F) << module;
        EXPECT_GT(change, 1e-3F) << module;
    }
    EXPECT_EQ(parameters, done.parameters);
}

TEST(LoraExport, PeftAddsWhatMergingAdds) {
    for (const char* name : {"llama_gqa", "qwen2", "gemma2"}) {
        Model model = fixture_model(name);
        for (size_t p = 0; p < model.topology.layers.size(); ++p) {
            for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_o, Slot::ffn_down})
                add_lora(model, p, slot, 3);
        }
        expect_peft_merges(model);
    }
}

TEST(LoraExport, PeftConfiguration) {
    Model model = small_model({.layers = 2}, scattered);
    for (size_t p = 0; p < 2; ++p) add_lora(model, p, Slot::attn_q, 2);
    const TempFolder folder;
    const auto config = [&](const std::string& name) {
        save_peft(model, folder / name, false);
        return json::parse(read_all(folder / (name + "/adapter_config.json")));
    };
    json c = config("one");
    EXPECT_EQ(c["peft_type"], "LORA");
    EXPECT_EQ(c["r"], 2);
    EXPECT_EQ(c["lora_alpha"], 2);
    EXPECT_EQ(c["target_modules"], json({"q_proj"}));
    EXPECT_TRUE(c["rank_pattern"].empty());
    add_lora(model, 1, Slot::ffn_up, 4);  // another rank, at one layer only
    c = config("two");
    EXPECT_EQ(c["r"], 4);
    EXPECT_EQ(c["rank_pattern"], json({{"layers.0.self_attn.q_proj", 2}, {"layers.1.self_attn.q_proj", 2}}));
    EXPECT_EQ(c["alpha_pattern"], c["rank_pattern"]);
    EXPECT_EQ(c["target_modules"], json({"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                                         "model.layers.1.mlp.up_proj"}));
}

TEST(LoraExport, ScalesAndTransposedTermsAreWrittenOut) {
    Model model = fixture_model("llama_gqa");
    add_lora(model, 0, Slot::attn_k, 2);
    auto& plus = std::get<Plus>(model.topology.layers[0].at(Slot::attn_k));
    std::swap(plus.term.u, plus.term.v);
    plus.term.transposed = true;
    // U is then {rank, in} and V {out, rank}: the numbers are transposed.
    for (const auto& name : {plus.term.u, plus.term.v}) {
        Tensor& tensor = model.tensors.at(name);
        const auto values = floats_of(model, name);
        const auto rows = static_cast<size_t>(tensor.shape[1]), width = static_cast<size_t>(tensor.shape[0]);
        std::vector<float> turned(values.size());
        for (size_t i = 0; i < values.size(); ++i) turned[i % width * rows + i / width] = values[i];
        tensor = float_tensor({tensor.shape[1], tensor.shape[0]}, turned);
    }
    model.tensors["scales"] = float_tensor({2, 2}, {1, 1, 3, 0.5F});
    plus.term.scale = "scales";
    plus.term.row = 1;
    validate(model);
    expect_peft_merges(model);
}

TEST(LoraExport, LlamaAdapter) {
    Model model = small_model({.layers = 2}, scattered);
    add_lora(model, 0, Slot::attn_v, 2);
    const TempFolder folder;
    save_lora_gguf(model, folder / "one.gguf", false);
    auto file = GgufFile::open(folder / "one.gguf");
    EXPECT_EQ(file->metadata().string("general.type"), "adapter");
    EXPECT_EQ(file->metadata().string("general.architecture"), "llama");
    EXPECT_EQ(file->metadata().string("adapter.type"), "lora");
    EXPECT_EQ(file->metadata().real("adapter.lora.alpha"), 2);
    ASSERT_EQ(file->tensors().size(), 2u);
    EXPECT_EQ(file->tensors()[0].name, "blk.0.attn_v.weight.lora_a");
    EXPECT_EQ(file->tensors()[0].shape, (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(file->tensors()[1].shape, (std::vector<int64_t>{2, 4}));
    add_lora(model, 1, Slot::ffn_down, 1);
    save_lora_gguf(model, folder / "two.gguf", false);
    EXPECT_EQ(GgufFile::open(folder / "two.gguf")->metadata().real("adapter.lora.alpha"), 0);
}

TEST(LoraExport, WhatNoAdapterFitsIsRefused) {
    const TempFolder folder;
    const Model plain = small_model({}, scattered);
    EXPECT_NE(
        message([&] { save_peft(plain, folder / "x", false); }, ErrorCode::usage).find("no low-rank terms"),
        std::string::npos);
    EXPECT_NE(
        message([&] { save_lora_gguf(plain, folder / "x", false); }, ErrorCode::usage).find("no low-rank"),
        std::string::npos);
    Model joined = fixture_model("gpt_neox");
    add_lora(joined, 1, Slot::attn_k, 2);
    EXPECT_NE(message([&] { save_peft(joined, folder / "x", false); }, ErrorCode::unsupported)
                  .find("layer 1 attn.k: the checkpoints of family 'gptneox' have this matrix joined"),
              std::string::npos);
    EXPECT_NE(message([&] { save_lora_gguf(joined, folder / "x", false); }, ErrorCode::unsupported)
                  .find("joined with others"),
              std::string::npos);
    Model turned = fixture_model("gpt2_hub");
    add_lora(turned, 1, Slot::ffn_up, 2);
    EXPECT_NE(
        message([&] { save_peft(turned, folder / "x", false); }, ErrorCode::unsupported).find("transposed"),
        std::string::npos);
    EXPECT_TRUE(folder.files().empty());
}

}  // namespace
}  // namespace refold
