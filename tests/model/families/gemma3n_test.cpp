// What Gemma 3n's description says beyond its golden fixture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/error_of.h"
#include "model/accounting.h"
#include "model/families/renamed_checkpoint.h"
#include "model/hf/export.h"
#include "model/materialize.h"
#include "model/quantized.h"
#include "model/save.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using Counts = std::vector<int64_t>;

Model fixture() { return load_model(fixture_path("gemma3n")); }

// The fixture's checkpoint under other names, without the tensors that `rename` gives no name, and with the
// first `rows` rows of the table of inputs.
void write_checkpoint(const std::string& folder, const std::function<std::string(const std::string&)>& rename,
                      int64_t rows = 256) {
    json config = fixture_config("gemma3n");
    config["vocab_size_per_layer_input"] = rows;
    write_renamed("gemma3n", folder, config, rename, [rows](const std::string& name, SafetensorsView& view) {
        if (!name.ends_with("embed_tokens_per_layer.weight")) return;
        view.data = view.data.first(view.data.size() / static_cast<size_t>(view.shape[0]) *
                                    static_cast<size_t>(rows));
        view.shape[0] = rows;
    });
}

std::string same_name(const std::string& name) { return name; }

TEST(Gemma3n, IsPlainGguf) {
    const TempFolder folder;
    const Model model = fixture();
    EXPECT_FALSE(model.has_sharing());
    EXPECT_EQ(model.topology.source(2).kv, 0U);  // the last one before with a window
    EXPECT_EQ(model.topology.source(3).kv, 1U);
    EXPECT_TRUE(model.topology.source(1).own());
    EXPECT_FALSE(model.topology.has(2, Slot::attn_k));
    save_model(model, folder / "model.gguf", false);
    const auto file = GgufFile::open(folder / "model.gguf");
    EXPECT_FALSE(file->metadata().has("refold.topology"));
    EXPECT_EQ(file->metadata().integer("gemma3n.attention.shared_kv_layers"), 2U);
    EXPECT_EQ(file->metadata().integer("gemma3n.altup.num_inputs"), 3U);
    EXPECT_EQ(file->metadata().integer("gemma3n.embedding_length_per_layer_input"), 8U);
    std::map<std::string, Counts> shapes;
    for (const auto& tensor : file->tensors()) shapes[tensor.name] = tensor.shape;
    EXPECT_EQ(shapes.at("altup_proj.weight"), (Counts{48, 48, 2}));
    EXPECT_EQ(shapes.at("altup_unembd_proj.weight"), (Counts{48, 48, 2}));
    EXPECT_EQ(shapes.at("per_layer_token_embd.weight"), (Counts{32, 256}));
    EXPECT_EQ(shapes.at("blk.1.altup_predict_coef.weight"), (Counts{3, 9}));
    EXPECT_EQ(shapes.at("blk.1.altup_correct_scale.weight"), Counts{48});
    EXPECT_EQ(shapes.at("blk.3.attn_k.weight"), (Counts{48, 24}));  // nothing reads it
    const Model back = load_model(folder / "model.gguf");
    EXPECT_EQ(back.topology, model.topology);
    EXPECT_EQ(back.config.ffn_cuts, model.config.ffn_cuts);
    EXPECT_NEAR(back.config.ffn_cuts[0], 1.2815516F, 1e-6);
    EXPECT_FALSE(back.config.cuts_ffn(2));
}

TEST(Gemma3n, CostsAreThoseOfWhatIsThere) {
    const Model model = fixture();
    const Accounting costs = account(model, 2);
    EXPECT_EQ(costs.model.kv_bytes_per_token, 2 * 2 * 24 * 2);  // two layers have their own
    uint64_t elements = 0;
    for (const auto& [name, tensor] : model.tensors) elements += static_cast<uint64_t>(tensor.elements());
    EXPECT_EQ(costs.model.parameters, elements);
    EXPECT_EQ(costs.dense.parameters, elements);
}

// Older and newer versions of transformers name tensors otherwise, and leave out what is not read.
TEST(Gemma3n, OtherNamesOfTensors) {
    const Model model = fixture();
    const auto short_name = [](std::string name) {
        for (const auto& [from, to] :
             {std::pair<std::string, std::string>{"model.language_model.", "model."},
              {"per_layer_model.language_model_projection", "per_layer_model_projection"}}) {
            if (const size_t at = name.find(from); at != name.npos) name.replace(at, from.size(), to);
        }
        return name;
    };
    const auto is_unread = [](const std::string& name) {
        return (name.find("layers.2.") != name.npos || name.find("layers.3.") != name.npos) &&
               (name.find("k_proj") != name.npos || name.find("v_proj") != name.npos ||
                name.find("k_norm") != name.npos);
    };
    const TempFolder folder;
    write_checkpoint(fs::path(folder / "config.json").parent_path(),
                     [&](const std::string& name) { return is_unread(name) ? "" : short_name(name); });
    const Model other = load_model(folder / "");
    EXPECT_EQ(other.topology, model.topology);
    EXPECT_EQ(other.tensors.size() + 6, model.tensors.size());
    for (const auto& [name, tensor] : other.tensors)
        EXPECT_EQ(floats_of(other, name), floats_of(model, name)) << name;
    const TempFolder out;
    save_hf_model(other, out / "hf", {});
    const SafetensorsFile file = read_safetensors(out / "hf/model.safetensors");
    EXPECT_TRUE(file.tensors.contains("model.per_layer_model_projection.weight"));
    EXPECT_FALSE(file.tensors.contains("model.layers.2.self_attn.k_proj.weight"));
}

// The table of inputs has fewer rows than the vocabulary; GGUF has all.
TEST(Gemma3n, TokensWithoutInputs) {
    const TempFolder folder;
    const std::string source = fs::path(folder / "config.json").parent_path();
    write_checkpoint(source, same_name, 200);
    const Model model = load_model(source);
    EXPECT_EQ(model.tensor("per_layer_token_embd.weight").shape, (Counts{32, 256}));
    const auto table = floats_of(model, "per_layer_token_embd.weight"),
               whole = floats_of(fixture(), "per_layer_token_embd.weight");
    EXPECT_TRUE(std::equal(table.begin(), table.begin() + 200 * 32, whole.begin()));
    EXPECT_TRUE(std::all_of(table.begin() + 200 * 32, table.end(), [](float x) { return x == 0; }));
    const TempFolder out;
    save_model(model, out / "model.gguf", false);
    save_hf_model(load_model(out / "model.gguf"), out / "hf", {});
    const SafetensorsFile expected = read_safetensors(source + "/model.safetensors"),
                          file = read_safetensors(out / "hf/model.safetensors");
    const auto& [mine, theirs] =
        std::pair(file.tensors.at("model.language_model.embed_tokens_per_layer.weight"),
                  expected.tensors.at("model.language_model.embed_tokens_per_layer.weight"));
    EXPECT_EQ(mine.shape, theirs.shape);
    EXPECT_TRUE(std::equal(mine.data.begin(), mine.data.end(), theirs.data.begin(), theirs.data.end()));
    EXPECT_THAT(error_of([&] { with_config("gemma3n", [](json& c) { c["vocab_size"] = 0; }); }),
                HasSubstr("vocab_size"));
}

TEST(Gemma3n, WhatItDoesNotComputeIsRefusedByName) {
    const auto error = [](const char* field, const json& value, ErrorCode code = ErrorCode::unsupported) {
        return config_error(
            "gemma3n", [&](json& c) { c[field] = value; }, code);
    };
    EXPECT_THAT(error("altup_active_idx", 1), HasSubstr("altup.active_idx' must be 0, got 1"));
    EXPECT_THAT(error("altup_correct_scale", false), HasSubstr("'altup_correct_scale'"));
    EXPECT_THAT(error("altup_num_inputs", 1), HasSubstr("altup.num_inputs' must be 2 to"));
    EXPECT_THAT(error("intermediate_size", {40, 40, 48, 40}), HasSubstr("differs from layer to layer"));
    EXPECT_THAT(error("num_kv_shared_layers", 4, ErrorCode::input), HasSubstr("less than the 4 layers"));
    EXPECT_THAT(error("num_kv_shared_layers", 3, ErrorCode::input),
                HasSubstr("layer 1 uses the keys and values of an earlier one without a window"));
    EXPECT_THAT(error("activation_sparsity_pattern", {0.5}, ErrorCode::input),
                HasSubstr("one entry for each of 4 layers"));
    EXPECT_THAT(error("activation_sparsity_pattern", 1.0, ErrorCode::input), HasSubstr("below 1, got 1.0"));
    EXPECT_EQ(error("intermediate_size", 40), "no error");
    EXPECT_EQ(error("num_kv_shared_layers", 0), "no error");
}

TEST(Gemma3n, DefaultsOfConfigJson) {
    const Model model = with_config("gemma3n", [](json& c) {
        c["num_hidden_layers"] = 12;
        for (const char* field : {"layer_types", "activation_sparsity_pattern", "intermediate_size",
                                  "num_kv_shared_layers", "final_logit_softcapping", "rope_theta"})
            c.erase(field);
        c["intermediate_size"] = 40;
        c["num_kv_shared_layers"] = 2;
    });
    EXPECT_EQ(model.config.logit_softcap, 30.0F);
    EXPECT_EQ(model.config.rope.base, 1e6F);
    EXPECT_NEAR(model.config.ffn_cuts[9], 1.6448536F, 1e-6);
    EXPECT_FALSE(model.config.cuts_ffn(10));
    EXPECT_EQ(model.config.window(4), 0);
    EXPECT_EQ(model.config.window(5), 8);
    EXPECT_EQ(model.topology.source(10).kv, 8U);
}

TEST(Gemma3n, WhatDoesNotGoTogetherIsRefused) {
    Model loops = fixture();
    loops.topology.loops = 2;
    EXPECT_THAT(error_of([&] { validate(loops); }, ErrorCode::unsupported),
                HasSubstr("2 loops of a model with 3 residual streams"));
    Model fewer = fixture();
    fewer.topology.layers.pop_back();
    fewer.topology.sources.erase(3);
    EXPECT_THAT(error_of([&] { validate(fewer); }, ErrorCode::unsupported),
                HasSubstr("3 layers, and inputs for 4"));
    Model narrow = fixture();
    narrow.config.ffs = {40, 32, 40, 40};
    EXPECT_THAT(error_of([&] { validate(narrow); }, ErrorCode::unsupported),
                HasSubstr("layer 1: its FFN cuts off gates"));
}

// Keys and values of other layers than the architecture's, and of the layer itself, are said in the topology.
TEST(Gemma3n, OtherSourcesThanItsOwn) {
    const TempFolder folder;
    Model model = fixture();
    model.topology.sources[2].kv = 1;
    model.topology.sources.erase(3);
    for (const Slot slot : {Slot::attn_k, Slot::attn_v, Slot::attn_k_norm})
        model.topology.layers[3][slot] = Dense{tensor_name(*model.family, slot, 3)};
    validate(model);
    EXPECT_TRUE(model.has_sharing());
    save_model(model, folder / "model.gguf", false);
    EXPECT_EQ(load_model(folder / "model.gguf").topology, model.topology);
    EXPECT_THAT(error_of([&] { without_sharing(model); }, ErrorCode::unsupported),
                HasSubstr("layer 2 takes its keys and values from layer 1"));
}

TEST(Gemma3n, QuantizedTablesAndMapsStayWhatTheyAre) {
    const Model model = quantize_model(fixture(), {DType::F16, std::nullopt, 1}).model;
    EXPECT_EQ(model.tensor("per_layer_token_embd.weight").type, DType::F16);
    EXPECT_EQ(model.tensor("blk.0.inp_gate.weight").type, DType::F16);
    for (const char* name : {"altup_proj.weight", "altup_unembd_proj.weight", "per_layer_model_proj.weight",
                             "blk.0.altup_router.weight", "blk.0.laurel_l.weight"})
        EXPECT_EQ(model.tensor(name).type, DType::F32) << name;
}

}  // namespace
}  // namespace refold
