// What the descriptions of mixtures of experts, Ouro and ALBERT say beyond their golden fixtures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "io/safetensors.h"
#include "model/accounting.h"
#include "model/families/edited_config.h"
#include "model/hf/export.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/stock.h"
#include "model/validate.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Counts = std::vector<int64_t>;

std::string load_error(const std::string& path) {
    try {
        load_model(path);
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

TEST(Mixtral, ExpertsAreOneTensorOfAFile) {
    const TempFolder folder;
    const Model model = load_model(fixture_path("mixtral"));
    EXPECT_EQ(model.config.n_expert, 4);
    EXPECT_EQ(model.config.n_expert_used, 2);
    EXPECT_EQ(model.config.n_ff_expert, 16);
    save_model(model, folder / "model.gguf", false);
    const auto file = GgufFile::open(folder / "model.gguf");
    std::map<std::string, Counts> shapes;
    for (const auto& tensor : file->tensors()) shapes[tensor.name] = tensor.shape;
    EXPECT_EQ(shapes.at("blk.1.ffn_gate_inp.weight"), (Counts{48, 4}));
    EXPECT_EQ(shapes.at("blk.1.ffn_up_exps.weight"), (Counts{48, 16, 4}));
    EXPECT_EQ(shapes.at("blk.1.ffn_down_exps.weight"), (Counts{16, 48, 4}));
    EXPECT_FALSE(shapes.contains("blk.1.ffn_gate.weight"));
    EXPECT_EQ(load_model(folder / "model.gguf").topology, model.topology);
}

TEST(Mixtral, OneTokenReadsTheExpertsItUses) {
    const Model model = load_model(fixture_path("mixtral"));
    const Cost cost = account(model).model;
    const auto experts = static_cast<uint64_t>(3 * 4 * 3 * 16 * 48);
    EXPECT_EQ(cost.active_parameters, cost.parameters - experts / 2);
    Model all = model;
    all.config.n_expert_used = 4;
    EXPECT_EQ(account(all).model.active_parameters, cost.parameters);
    EXPECT_EQ(account(all).model.flops_per_token - cost.flops_per_token, experts);
}

TEST(Mixtral, AMissingExpertIsNamed) {
    const TempFolder folder;
    std::filesystem::copy_file(fixture_path("mixtral") + "/config.json", folder / "config.json");
    const SafetensorsFile file = read_safetensors(fixture_path("mixtral") + "/model.safetensors");
    std::vector<SafetensorsOutput> outputs;
    for (const auto& [name, view] : file.tensors) {
        if (name == "model.layers.1.block_sparse_moe.experts.2.w3.weight") continue;
        outputs.push_back({name, view.dtype, view.shape, [v = view.data](const auto& sink) { sink(v); }});
    }
    write_safetensors(folder / "model.safetensors", false, outputs, {}, [](uint64_t, const std::string&) {});
    EXPECT_THAT(load_error(std::filesystem::path(folder / "config.json").parent_path()),
                HasSubstr("experts.2.w3.weight' is missing"));
}

// Experts of other layers in a layer's place, as heads are shared.
TEST(Mixtral, ExpertsAreSharedAcrossLayers) {
    Model model = load_model(fixture_path("mixtral"));
    for (const Slot slot : {Slot::ffn_gate_exps, Slot::ffn_up_exps, Slot::ffn_down_exps}) {
        const auto name = [&](size_t l) { return tensor_name(*model.family, slot, l); };
        model.topology.layers[2][slot] = Heads{{{name(0), 1, 1}, {name(1), 0, 3}}};
    }
    model.drop_unreferenced();
    validate(model);
    const TempFolder folder;
    save_model(model, folder / "shared.gguf", false);
    const Model back = load_model(folder / "shared.gguf");
    EXPECT_EQ(back.topology, model.topology);
    const Accounting costs = account(model);
    EXPECT_EQ(costs.dense.parameters - costs.model.parameters, 3 * 4 * 16 * 48);
    EXPECT_EQ(costs.dense.active_parameters - costs.model.active_parameters, 3 * 2 * 16 * 48);
    const auto shared = materialize(back, back.topology.at(2, Slot::ffn_down_exps), Slot::ffn_down_exps, 2);
    const auto source = materialize(back, back.topology.at(0, Slot::ffn_down_exps), Slot::ffn_down_exps, 0);
    EXPECT_TRUE(std::equal(shared.begin(), shared.begin() + 48 * 16, source.begin() + 48 * 16));
    model.topology.layers[2][Slot::ffn_up_exps] =
        Heads{{{tensor_name(*model.family, Slot::ffn_up_exps, 0), 1, 4}}};
    EXPECT_THROW(validate(model), Error);
}

TEST(Mixtral, ALayerMayHaveFewerExperts) {
    Model model = load_model(fixture_path("mixtral"));
    model.config.experts = {4, 3, 4};
    EXPECT_THROW(validate(model), Error);
    for (const Slot slot : {Slot::ffn_gate_exps, Slot::ffn_up_exps, Slot::ffn_down_exps})
        model.topology.layers[1][slot] = Heads{{{tensor_name(*model.family, slot, 1), 1, 3}}};
    const std::string router = tensor_name(*model.family, Slot::ffn_router, 1);
    const Tensor whole = model.tensor(router);
    model.tensors[router] = {
        whole.type, {48, 3}, TensorBytes(whole).bytes().first(3 * 48 * sizeof(float)), {}};
    validate(model);
    const TempFolder folder;
    save_model(model, folder / "pruned.gguf", false);
    EXPECT_EQ(load_model(folder / "pruned.gguf").config.experts, (Counts{4, 3, 4}));
    EXPECT_THAT(stock_error(model), HasSubstr("different numbers of experts"));
    model.config.experts = {4, 1, 4};
    EXPECT_THROW(validate(model), Error);
}

TEST(Mixtral, QuantizedExpertsStayOneTensor) {
    const Model model =
        quantize_model(load_model(fixture_path("mixtral")), {DType::Q8_0, std::nullopt, 1}).model;
    // Rows of 48 and 16 numbers are no whole blocks; folded rows would not end with an expert.
    EXPECT_EQ(model.tensor("blk.0.ffn_up_exps.weight").type, DType::F16);
    EXPECT_EQ(model.tensor("blk.0.ffn_up_exps.weight").shape, (Counts{48, 16, 4}));
    EXPECT_EQ(model.tensor("blk.0.ffn_gate_inp.weight").type, DType::F32);
}

TEST(Qwen3Moe, WhichLayersHaveExperts) {
    EXPECT_EQ(load_model(fixture_path("qwen3_moe")).config.experts, (Counts{8, 0, 8}));
    const Model all = with_config("qwen3_moe", [](json& c) { c["mlp_only_layers"] = json::array(); });
    EXPECT_TRUE(all.config.experts.empty());
    const Model second = with_config("qwen3_moe", [](json& c) {
        c["mlp_only_layers"] = nullptr;
        c["decoder_sparse_step"] = 2;
    });
    EXPECT_EQ(second.config.experts, (Counts{0, 8, 0}));
    EXPECT_TRUE(second.topology.has(0, Slot::ffn_gate));
    EXPECT_FALSE(second.topology.has(1, Slot::ffn_gate));
    EXPECT_THAT(config_error(
                    "qwen3_moe", [](json& c) { c["mlp_only_layers"] = {3}; }, ErrorCode::input),
                HasSubstr("'mlp_only_layers': 3"));
    const TempFolder folder;
    save_model(load_model(fixture_path("qwen3_moe")), folder / "model.gguf", false);
    EXPECT_EQ(load_model(folder / "model.gguf").config.experts, (Counts{8, 0, 8}));
}

TEST(Qwen3Moe, WeightsOfExperts) {
    EXPECT_TRUE(load_model(fixture_path("qwen3_moe")).config.norm_expert_weights);
    const Model over_all = with_config("qwen3_moe", [](json& c) {
        c.erase("norm_topk_prob");
        c["mlp_only_layers"] = json::array();
    });
    EXPECT_FALSE(over_all.config.norm_expert_weights);
    EXPECT_THAT(stock_error(over_all), HasSubstr("the weights of experts"));
}

TEST(Olmoe, WhatIsNotComputedIsRefused) {
    EXPECT_FALSE(load_model(fixture_path("olmoe")).config.norm_expert_weights);
    EXPECT_THAT(config_error("olmoe", [](json& c) { c["clip_qkv"] = 8.0; }), HasSubstr("'clip_qkv'"));
    EXPECT_THAT(config_error(
                    "olmoe", [](json& c) { c["num_experts_per_tok"] = 7; }, ErrorCode::input),
                HasSubstr("contradict"));
    EXPECT_THAT(config_error("llama_yarn", [](json& c) { c["num_local_experts"] = 4; }),
                HasSubstr("'num_local_experts'"));
}

TEST(GptOss, RotationAndWindows) {
    const Model model = load_model(fixture_path("gpt_oss"));
    EXPECT_EQ(model.config.windows, (Counts{8, 0, 8, 0}));
    EXPECT_EQ(model.config.rope.ext_factor, 0.0F);
    EXPECT_NEAR(model.config.rope.attention_factor, 0.1 * std::log(8.0) + 1, 1e-6);
    const auto factors = materialize(model, model.topology.globals.at(Slot::rope_freqs), Slot::rope_freqs);
    EXPECT_EQ(factors.front(), 1.0F);  // fast
    EXPECT_EQ(factors.back(), 8.0F);   // slow
    const StockModel stock = for_stock(model);
    EXPECT_THAT(stock.note, HasSubstr("YaRN"));
    EXPECT_EQ(stock.model.tensor("blk.0.ffn_up_exps.bias").shape, (Counts{24, 4}));
    const TempFolder folder;
    save_model(stock.model, folder / "stock.gguf", false);
    EXPECT_EQ(load_model(folder / "stock.gguf").config.rope.ext_factor, 1.0F);
    EXPECT_THAT(config_error("gpt_oss", [](json& c) { c["swiglu_limit"] = 5.0; }),
                HasSubstr("'swiglu_limit'"));
    EXPECT_THAT(config_error("gpt_oss",
                             [](json& c) {
                                 c["quantization_config"] = {{"quant_method", "fp8"}};
                             }),
                HasSubstr("'fp8'"));
}

// ---- MXFP4 ----

// Values of the four bits, and of the bytes of two experts with two rows of gate and up each, 32 columns.
constexpr float kLevels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

class PackedGptOss : public testing::Test {
protected:
    static constexpr int64_t kExperts = 2, kWidth = 32, kEmbd = 32;

    std::vector<std::byte> bytes(const std::string& name, size_t count) {
        std::vector<std::byte>& out = data_[name];
        for (size_t i = 0; i < count; ++i)
            out.push_back(static_cast<std::byte>(
                name.ends_with("_scales") ? 120 + (i * 7) % 11 : (i * 37 + name.size() * 11) % 256));
        return out;
    }

    void SetUp() override {
        json config = json::parse(read_text_file(fixture_path("gpt_oss") + "/config.json"));
        config["hidden_size"] = kEmbd;
        config["intermediate_size"] = kWidth;
        config["num_local_experts"] = kExperts;
        config["num_hidden_layers"] = 1;
        config["layer_types"] = {"sliding_attention"};
        config["vocab_size"] = 8;
        config["quantization_config"] = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
        std::ofstream(folder / "config.json") << config.dump();
        const std::string layer = "model.layers.0.";
        for (const auto& [name, shape] :
             std::map<std::string, Counts>{{"lm_head.weight", {8, kEmbd}},
                                           {"model.embed_tokens.weight", {8, kEmbd}},
                                           {"model.norm.weight", {kEmbd}},
                                           {layer + "input_layernorm.weight", {kEmbd}},
                                           {layer + "post_attention_layernorm.weight", {kEmbd}},
                                           {layer + "self_attn.q_proj.weight", {64, kEmbd}},
                                           {layer + "self_attn.k_proj.weight", {32, kEmbd}},
                                           {layer + "self_attn.v_proj.weight", {32, kEmbd}},
                                           {layer + "self_attn.o_proj.weight", {kEmbd, 64}},
                                           {layer + "self_attn.q_proj.bias", {64}},
                                           {layer + "self_attn.k_proj.bias", {32}},
                                           {layer + "self_attn.v_proj.bias", {32}},
                                           {layer + "self_attn.o_proj.bias", {kEmbd}},
                                           {layer + "self_attn.sinks", {4}},
                                           {layer + "mlp.router.weight", {kExperts, kEmbd}},
                                           {layer + "mlp.router.bias", {kExperts}},
                                           {layer + "mlp.experts.gate_up_proj_bias", {kExperts, 2 * kWidth}},
                                           {layer + "mlp.experts.down_proj_bias", {kExperts, kEmbd}}}) {
            int64_t count = 2;
            for (const int64_t n : shape) count *= n;
            add(name, "BF16", shape, std::vector<std::byte>(static_cast<size_t>(count)));
        }
        for (const auto& [name, rows, columns] :
             {std::tuple{"gate_up_proj", 2 * kWidth, kEmbd}, std::tuple{"down_proj", kEmbd, kWidth}}) {
            const std::string weight = layer + "mlp.experts." + name;
            const auto blocks = static_cast<size_t>(kExperts * rows * columns / 32);
            add(weight + "_blocks", "U8", {kExperts, rows, columns / 32, 16},
                bytes(weight + "_blocks", 16 * blocks));
            add(weight + "_scales", "U8", {kExperts, rows, columns / 32}, bytes(weight + "_scales", blocks));
        }
        write_safetensors(folder / "model.safetensors", false, outputs_, {},
                          [](uint64_t, const std::string&) {});
    }

    void add(const std::string& name, const char* dtype, const Counts& shape, std::vector<std::byte> data) {
        outputs_.push_back({name, dtype, shape, [d = std::move(data)](const auto& sink) { sink(d); }});
    }

    // The checkpoint's weight of an expert's row and column.
    float value(const std::string& name, int64_t rows, int64_t expert, int64_t row, int64_t column) const {
        const auto block = static_cast<size_t>(expert * rows + row);  // one block a row
        const auto byte = data_.at(name + "_blocks")[block * 16 + static_cast<size_t>(column / 2)];
        const auto bits = std::to_integer<unsigned>(byte) >> (column % 2 * 4) & 15U;
        const auto exponent = std::to_integer<int>(data_.at(name + "_scales")[block]) - 127;
        return std::ldexp(kLevels[bits], exponent);
    }

    TempFolder folder;
    std::string path() const { return std::filesystem::path(folder / "config.json").parent_path(); }

private:
    std::vector<SafetensorsOutput> outputs_;
    std::map<std::string, std::vector<std::byte>> data_;
};

TEST_F(PackedGptOss, IsReadAsItIs) {
    const Model model = load_model(path());
    const std::string prefix = "model.layers.0.mlp.experts.";
    const auto matrix = [&](Slot slot) { return materialize(model, model.topology.at(0, slot), slot, 0); };
    EXPECT_EQ(model.tensor("blk.0.ffn_gate_exps.weight").type, DType::MXFP4);
    const auto gate = matrix(Slot::ffn_gate_exps), up = matrix(Slot::ffn_up_exps),
               down = matrix(Slot::ffn_down_exps);
    for (int64_t e = 0; e < kExperts; ++e) {
        for (int64_t r = 0; r < kWidth; ++r) {
            for (int64_t c = 0; c < kEmbd; ++c) {
                const auto at = static_cast<size_t>((e * kWidth + r) * kEmbd + c);
                ASSERT_EQ(gate[at], value(prefix + "gate_up_proj", 2 * kWidth, e, 2 * r, c))
                    << e << ' ' << r << ' ' << c;
                ASSERT_EQ(up[at], value(prefix + "gate_up_proj", 2 * kWidth, e, 2 * r + 1, c));
                ASSERT_EQ(down[at], value(prefix + "down_proj", kEmbd, e, r, c));
            }
        }
    }
}

TEST_F(PackedGptOss, IsWrittenAsItWas) {
    save_hf_model(load_model(path()), folder / "out", {});
    const auto before = read_safetensors(folder / "model.safetensors"),
               after = read_safetensors((folder / "out") + "/model.safetensors");
    ASSERT_EQ(before.tensors.size(), after.tensors.size());
    for (const auto& [name, view] : before.tensors) {
        EXPECT_EQ(after.tensors.at(name).dtype, view.dtype) << name;
        EXPECT_EQ(after.tensors.at(name).shape, view.shape) << name;
        EXPECT_TRUE(std::ranges::equal(after.tensors.at(name).data, view.data)) << name;
    }
    EXPECT_TRUE(
        json::parse(read_text_file((folder / "out") + "/config.json")).contains("quantization_config"));
    save_hf_model(load_model(path()), folder / "floats", {.type = DType::F32});
    EXPECT_FALSE(
        json::parse(read_text_file((folder / "floats") + "/config.json")).contains("quantization_config"));
    const Model floats = load_model(folder / "floats");
    EXPECT_EQ(
        materialize(floats, floats.topology.at(0, Slot::ffn_up_exps), Slot::ffn_up_exps, 0),
        materialize(load_model(path()), floats.topology.at(0, Slot::ffn_up_exps), Slot::ffn_up_exps, 0));
}

// ---- layers that run several times ----

TEST(Ouro, LoopsAreSharing) {
    const Model model = load_model(fixture_path("ouro"));
    EXPECT_EQ(model.topology.loops, 4);
    EXPECT_EQ(model.topology.layers.size(), 12U);
    EXPECT_EQ(model.topology.stored_layers(), 3U);
    EXPECT_FALSE(model.topology.has(0, Slot::ffn_output_norm));
    EXPECT_TRUE(model.topology.has(2, Slot::ffn_output_norm));
    const TempFolder folder;
    save_model(model, folder / "model.gguf", false);
    EXPECT_EQ(load_model(folder / "model.gguf").topology, model.topology);
    EXPECT_EQ(with_config("ouro", [](json& c) { c["total_ut_steps"] = 2; }).topology.loops, 2);
    EXPECT_THAT(config_error(
                    "ouro", [](json& c) { c["total_ut_steps"] = 0; }, ErrorCode::input),
                HasSubstr("'total_ut_steps'"));
}

TEST(Albert, GroupsOfLayersAreSharing) {
    const Model model = load_model(fixture_path("albert"));
    EXPECT_EQ(model.topology.layers.size(), 3U);
    EXPECT_EQ(model.topology.stored_layers(), 1U);
    EXPECT_EQ(model.config.embedding_width(), 32);
    const Model groups = with_config("albert", [](json& c) {
        c["num_hidden_layers"] = 6;
        c["num_hidden_groups"] = 2;
    });
    EXPECT_EQ(groups.topology.stored_layers(), 2U);
    EXPECT_EQ(groups.topology.layers[2], groups.topology.layers[0]);
    EXPECT_NE(groups.topology.layers[3], groups.topology.layers[0]);
    EXPECT_THAT(config_error("albert", [](json& c) { c["inner_group_num"] = 2; }),
                HasSubstr("'inner_group_num'"));
    EXPECT_THAT(config_error("albert", [](json& c) { c["num_hidden_groups"] = 2; }),
                HasSubstr("no multiple"));
    const TempFolder folder;
    save_model(model, folder / "model.gguf", false);
    EXPECT_EQ(load_model(folder / "model.gguf").topology, model.topology);
}

}  // namespace
}  // namespace refold
