// Adapters of PEFT and llama.cpp, as refold writes them and changed by hand.
#include "model/adapter/adapter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/code_of.h"
#include "core/files.h"
#include "core/temp_folder.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/export/lora.h"
#include "model/load.h"
#include "model/low_rank_model.h"
#include "model/materialize.h"
#include "model/small_model.h"

namespace refold {
namespace {

using nlohmann::json;

Model fixture_model(const std::string& name) {
    return load_model(std::string(REFOLD_FIXTURES) + "/hf/" + name);
}

// scale B A
std::vector<float> product(const Adapter::Term& term) {
    const auto rank = static_cast<size_t>(term.rank), in = term.a.size() / rank, out = term.b.size() / rank;
    std::vector<float> w(in * out);
    for (size_t row = 0; row < out; ++row)
        for (size_t k = 0; k < rank; ++k)
            for (size_t c = 0; c < in; ++c)
                w[row * in + c] += term.scale * term.b[row * rank + k] * term.a[k * in + c];
    return w;
}

// The adapter's terms are what the model has beside its base's weights.
void expect_terms_of(const Model& model, const Adapter& adapter) {
    size_t terms = 0;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const auto& [slot, expression] : model.topology.layers[l]) {
            const auto* plus = std::get_if<Plus>(&expression);
            if (plus == nullptr) continue;
            ++terms;
            const auto found = std::ranges::find_if(
                adapter.terms, [&, s = slot](const auto& t) { return t.layer == l && t.slot == s; });
            ASSERT_NE(found, adapter.terms.end()) << slot_name(slot) << " of layer " << l;
            const auto expected = materialize(model, Expression(plus->term), slot, l), got = product(*found);
            ASSERT_EQ(got.size(), expected.size());
            for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-5) << slot_name(slot);
        }
    }
    EXPECT_EQ(adapter.terms.size(), terms);
}

TEST(AdapterFiles, WhatRefoldWrites) {
    for (const char* name : {"llama_gqa", "qwen2", "gemma2"}) {
        Model model = fixture_model(name);
        for (size_t p = 0; p < model.topology.layers.size(); ++p)
            for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_o, Slot::ffn_down})
                if (p > 0 || slot != Slot::attn_k) add_lora(model, p, slot, 3 + static_cast<int64_t>(p));
        const TempFolder folder;
        save_peft(model, folder / "peft", false);
        expect_terms_of(model, load_adapter(folder / "peft", without_lora(model)));
        if (std::string(name) == "gemma2") continue;  // llama.cpp has its queries scaled
        save_lora_gguf(model, folder / "lora.gguf", false);
        expect_terms_of(model, load_adapter(folder / "lora.gguf", without_lora(model)));
    }
}

// PEFT's folder of a small model's LoRA, with changes to its configuration.
class Peft {
public:
    Peft() : model_(small_model({.layers = 2}, scattered)) {
        add_lora(model_, 0, Slot::attn_q, 2);
        add_lora(model_, 1, Slot::ffn_up, 4);
        save_peft(model_, path(), false);
        base_ = without_lora(model_);
    }
    std::string path() const { return folder_ / "peft"; }
    Adapter load(const std::function<void(json&)>& change = [](json&) {}) const {
        const std::string file = path() + "/adapter_config.json";
        const std::string before = read_all(file);
        json config = json::parse(before);
        change(config);
        write_all(file, config.dump());
        struct Restore {
            const std::string &file, &text;
            ~Restore() { write_all(file, text); }
        } const restore{file, before};
        return load_adapter(path(), base_);
    }
    const Model& base() const { return base_; }

private:
    TempFolder folder_;
    Model model_, base_;
};

TEST(AdapterFiles, ScalesOfPeft) {
    const Peft peft;
    const auto scales = [&](const std::function<void(json&)>& change) {
        const Adapter adapter = peft.load(change);
        std::vector<float> out;
        for (const Adapter::Term& term : adapter.terms) out.push_back(term.scale);
        return out;
    };
    using Scales = std::vector<float>;
    EXPECT_EQ(scales([](json&) {}), (Scales{1, 1}));
    const auto alone = [](json& c) { c["alpha_pattern"] = json::object(); };
    EXPECT_EQ(scales([&](json& c) {
                  alone(c);
                  c["lora_alpha"] = 16;
              }),
              (Scales{8, 4}));
    EXPECT_EQ(scales([&](json& c) {
                  alone(c);
                  c["lora_alpha"] = 16;
                  c["use_rslora"] = true;
              }),
              (Scales{16 / std::sqrt(2.0F), 8}));
    EXPECT_EQ(scales([&](json& c) {
                  c["lora_alpha"] = 16;
                  c["alpha_pattern"] = {{"layers.1.mlp.up_proj", 2}};
              }),
              (Scales{8, 0.5F}));
    EXPECT_EQ(scales([&](json& c) {
                  c["lora_alpha"] = 16;
                  c["alpha_pattern"] = {{".*_proj", 8}};
              }),
              (Scales{4, 2}));
}

TEST(AdapterFiles, WhatIsNoLora) {
    const Peft peft;
    const auto refused = [&](const char* field, const json& value, const char* text) {
        EXPECT_EQ(code_of([&] { peft.load([&](json& c) { c[field] = value; }); }, text),
                  ErrorCode::unsupported)
            << field;
    };
    refused("use_dora", true, "DoRA");
    refused("peft_type", "IA3", "IA3");
    refused("modules_to_save", {"lm_head"}, "modules_to_save");
    refused("bias", "all", "bias");
    refused("init_lora_weights", "pissa_niter_4", "pissa");
    refused("target_parameters", {"experts"}, "target_parameters");
    EXPECT_EQ(code_of([&] { peft.load([](json& c) { c = json::array(); }); }, "JSON object"),
              ErrorCode::input);
    EXPECT_EQ(code_of([&] { load_adapter(REFOLD_FIXTURES "/hf/llama_gqa", peft.base()); }, "adapter_config"),
              ErrorCode::io);
    EXPECT_EQ(
        code_of([&] { load_adapter(REFOLD_FIXTURES "/llama_gqa/model.gguf", peft.base()); }, "no adapter"),
        ErrorCode::input);
}

TEST(AdapterFiles, OfAnotherModel) {
    const Peft peft;
    EXPECT_EQ(code_of([&] { load_adapter(peft.path(), fixture_model("llama_gqa")); }, "another model"),
              ErrorCode::input);
    EXPECT_EQ(code_of([&] { load_adapter(peft.path(), fixture_model("gpt2_hub")); }, "none of the matrices"),
              ErrorCode::unsupported);
    const TempFolder folder;
    Model model = small_model({.layers = 2}, scattered);
    add_lora(model, 0, Slot::attn_q, 2);
    save_lora_gguf(model, folder / "lora.gguf", false);
    EXPECT_EQ(code_of([&] { load_adapter(folder / "lora.gguf", fixture_model("qwen2")); }, "'llama'"),
              ErrorCode::input);
}

void write_peft(const std::string& folder, const std::vector<SafetensorsTensor>& tensors) {
    std::filesystem::create_directory(folder);
    write_all(folder + "/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 2})");
    write_safetensors(folder + "/adapter_model.safetensors", true, tensors);
}

TEST(AdapterFiles, ModulesThatTakeNoLora) {
    const Model model = small_model({.layers = 2}, scattered);
    const TempFolder folder;
    const std::vector<float> numbers(8, 1);
    const auto refused = [&](const std::string& name, const char* text) {
        write_peft(folder / "peft",
                   {{name + ".lora_A.weight", {2, 4}, numbers}, {name + ".lora_B.weight", {4, 2}, numbers}});
        EXPECT_EQ(code_of([&] { load_adapter(folder / "peft", model); }, text), ErrorCode::unsupported);
    };
    refused("base_model.model.model.layers.2.self_attn.q_proj", "layers.2.self_attn.q_proj");
    refused("base_model.model.model.embed_tokens", "embed_tokens");
    refused("base_model.model.model.layers.0.input_layernorm", "input_layernorm");
    write_peft(folder / "peft", {{"base_model.model.model.embed_tokens.lora_embedding_A", {2, 4}, numbers}});
    EXPECT_EQ(code_of([&] { load_adapter(folder / "peft", model); }, "lora_embedding_A"),
              ErrorCode::unsupported);
    write_peft(folder / "peft",
               {{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", {2, 4}, numbers}});
    EXPECT_EQ(code_of([&] { load_adapter(folder / "peft", model); }, "one of lora_A and lora_B"),
              ErrorCode::input);
}

// GPT-2 has Q, K and V as one matrix: one A for all three.
TEST(AdapterFiles, JoinedMatrices) {
    const Model model = fixture_model("gpt2_hub");
    const auto width = static_cast<size_t>(model.config.n_embd);
    std::vector<float> a(2 * width, 0.5F), b(3 * width * 2);
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i);
    const TempFolder folder;
    const std::string name = "base_model.model.transformer.h.1.attn.c_attn";
    write_peft(folder / "peft", {{name + ".lora_A.default.weight", {2, static_cast<int64_t>(width)}, a},
                                 {name + ".lora_B.default.weight", {static_cast<int64_t>(3 * width), 2}, b}});
    const Adapter adapter = load_adapter(folder / "peft", model);
    ASSERT_EQ(adapter.terms.size(), 3U);
    for (const Adapter::Term& term : adapter.terms) {
        const size_t place = term.slot == Slot::attn_q ? 0 : term.slot == Slot::attn_k ? 1 : 2;
        EXPECT_EQ(term.layer, 1U);
        ASSERT_EQ(term.b.size(), 2 * width);
        EXPECT_EQ(term.b.front(), b[place * 2 * width]);
        EXPECT_EQ(term.b.back(), b[(place + 1) * 2 * width - 1]);
    }
}

// An adapter for the block of a looped model is for all loops; one for all its layers for each of them.
TEST(AdapterFiles, OfLoopedModels) {
    const Model model = looped(small_model({.layers = 4}, scattered), 2);
    const TempFolder folder;
    const std::vector<float> numbers(8, 1);
    const auto layers = [&](const std::vector<int>& of) {
        std::vector<SafetensorsTensor> tensors;
        for (const int layer : of) {
            const std::string name = fmt::format("base_model.model.model.layers.{}.self_attn.q_proj", layer);
            tensors.push_back({name + ".lora_A.weight", {2, 4}, numbers});
            tensors.push_back({name + ".lora_B.weight", {4, 2}, numbers});
        }
        write_peft(folder / "peft", tensors);
        std::vector<size_t> out;
        for (const Adapter::Term& term : load_adapter(folder / "peft", model).terms)
            out.push_back(term.layer);
        return out;
    };
    EXPECT_EQ(layers({1}), (std::vector<size_t>{1, 3}));
    EXPECT_EQ(layers({1, 2}), (std::vector<size_t>{1, 2}));
}

}  // namespace
}  // namespace refold
