#include "model/model.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/code_of.h"
#include "core/error.h"
#include "core/temp_folder.h"
#include "model/accounting.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/save.h"
#include "model/small_model.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

const std::string kFixtures = REFOLD_FIXTURES;

float numbered(size_t layer, Slot slot, int64_t row, int64_t column) {
    return static_cast<float>(layer * 1000 + static_cast<size_t>(slot) * 100 +
                              static_cast<size_t>(row * 10 + column)) /
           7;
}

std::string error_of(const Model& model) {
    try {
        validate(model);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::input);
        return error.what();
    }
    ADD_FAILURE() << "the model is valid";
    return "";
}

// Layer 2 takes its head 1 of q, k, v, o from layer 0's head 0.
Model shared_model() {
    Model model = small_model({}, numbered);
    for (const auto& [slot, name] : {std::pair{Slot::attn_q, "attn_q"},
                                     {Slot::attn_k, "attn_k"},
                                     {Slot::attn_v, "attn_v"},
                                     {Slot::attn_o, "attn_output"}}) {
        model.topology.layers[2][slot] = Heads{
            {{fmt::format("blk.2.{}.weight", name), 0, 1}, {fmt::format("blk.0.{}.weight", name), 0, 1}}};
    }
    return model;
}

TEST(Model, FixturesLoad) {
    for (const char* name : {"llama", "llama_gqa", "llama_bf16_sharded"}) {
        const Model model = load_model(kFixtures + "/" + name + "/model.gguf");
        EXPECT_EQ(model.topology.layers.size(), 4u);
        EXPECT_FALSE(model.has_sharing());
        EXPECT_EQ(model.topology, model.implied());
    }
}

TEST(Model, SaveAndLoadIsTheIdentity) {
    const TempFolder folder;
    const Model model = load_model(kFixtures + "/llama_gqa/model.gguf");
    save_model(model, folder / "copy.gguf", false);
    const Model copy = load_model(folder / "copy.gguf");
    EXPECT_EQ(copy.topology, model.topology);
    ASSERT_EQ(copy.tensors.size(), model.tensors.size());
    for (const auto& [name, tensor] : model.tensors) {
        const auto a = tensor.mapped, b = copy.tensor(name).mapped;
        EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
    }
    EXPECT_FALSE(copy.metadata.has("refold.topology"));
}

TEST(Model, SharedTopologyRoundTrips) {
    const TempFolder folder;
    const Model model = shared_model();
    save_model(model, folder / "shared.gguf", false);
    const Model loaded = load_model(folder / "shared.gguf");
    EXPECT_EQ(loaded.topology, model.topology);
    EXPECT_TRUE(loaded.has_sharing());
}

TEST(Model, ErrorsNameLayerAndSlot) {
    Model model = small_model({}, numbered);
    model.topology.layers[1][Slot::attn_q] = Dense{"nothing"};
    EXPECT_NE(error_of(model).find("layer 1 attn.q: refers to tensor 'nothing'"), std::string::npos);

    model = small_model({}, numbered);
    model.topology.layers[1][Slot::ffn_down] = Dense{"blk.1.ffn_up.weight"};
    const std::string shape = error_of(model);
    EXPECT_NE(shape.find("layer 1 ffn.down"), std::string::npos) << shape;
    EXPECT_NE(shape.find("[4, 32], expected [32, 4]"), std::string::npos) << shape;

    model = small_model({}, numbered);
    model.topology.layers[0].erase(Slot::ffn_norm);
    EXPECT_NE(error_of(model).find("layer 0 ffn.norm is missing"), std::string::npos);

    for (const Heads& heads : {Heads{{{"blk.0.attn_q.weight", 1, 2}}},
                               Heads{{{"blk.0.attn_q.weight", 2, 1}, {"blk.0.attn_q.weight", 0, 1}}},
                               Heads{{{"blk.0.attn_q.weight", 0, 1}}},
                               Heads{{{"blk.0.attn_q.weight", 0, 2}, {"blk.0.attn_q.weight", 0, 1}}},
                               Heads{{{"blk.0.ffn_down.weight", 0, 2}}}}) {
        model = small_model({}, numbered);
        model.topology.layers[2][Slot::attn_q] = heads;
        EXPECT_NE(error_of(model).find("layer 2 attn.q"), std::string::npos);
    }
    model = small_model({}, numbered);
    model.topology.layers[2][Slot::ffn_up] = Heads{{{"blk.0.ffn_up.weight", 0, 2}}};
    EXPECT_NE(error_of(model).find("consist of heads"), std::string::npos);
}

TEST(Model, SharedColumnsMustBeWholeBlocks) {
    const SmallShape shape{.layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 16, .embd = 32, .ff = 32};
    Model model = small_model(shape, numbered, {{Slot::attn_o, DType::Q8_0}});
    model.topology.layers[1][Slot::attn_o] =
        Heads{{{"blk.0.attn_output.weight", 0, 1}, {"blk.1.attn_output.weight", 1, 1}}};
    EXPECT_NE(error_of(model).find("not whole Q8_0 blocks of 32"), std::string::npos);
    model.topology.layers[1][Slot::attn_o] = Heads{{{"blk.0.attn_output.weight", 0, 2}}};
    validate(model);
}

TEST(Model, MaterialiseTakesRowsAndColumns) {
    const Model model = shared_model();
    const auto q = materialize(model, model.topology.at(2, Slot::attn_q), Slot::attn_q);
    const auto o = materialize(model, model.topology.at(2, Slot::attn_o), Slot::attn_o);
    for (int64_t r = 0; r < 4; ++r) {
        for (int64_t c = 0; c < 4; ++c) {
            const auto at = static_cast<size_t>(r * 4 + c);
            EXPECT_FLOAT_EQ(q[at],
                            r < 2 ? numbered(2, Slot::attn_q, r, c) : numbered(0, Slot::attn_q, r - 2, c));
            EXPECT_FLOAT_EQ(o[at],
                            c < 2 ? numbered(2, Slot::attn_o, r, c) : numbered(0, Slot::attn_o, r, c - 2));
        }
    }
    const Model dense = without_sharing(model);
    EXPECT_FALSE(dense.has_sharing());
    EXPECT_EQ(materialize(dense, dense.topology.at(2, Slot::attn_o), Slot::attn_o), o);
}

TEST(Model, AccountingIsWhatTheFileHolds) {
    const TempFolder folder;
    Model model = shared_model();
    // Layer 2 stores only its head 0; layer 1 equals layer 0.
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
        const std::string tensor = fmt::format("blk.2.{}.weight", name);
        const bool columns = std::string(name) == "attn_output";
        model.tensors[tensor] = float_tensor(
            columns ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{4, 2}, std::vector<float>(8, 1.0F));
    }
    model.topology.layers[1] = model.topology.layers[0];
    model.drop_unreferenced();
    save_model(model, folder / "m.gguf", false);
    const auto file = GgufFile::open(folder / "m.gguf");
    uint64_t bytes = 0, parameters = 0;
    for (const auto& tensor : file->tensors()) {
        bytes += tensor.data.size();
        uint64_t elements = 1;
        for (const int64_t d : tensor.shape) elements *= static_cast<uint64_t>(d);
        parameters += elements;
    }
    const Accounting accounting = account(model);
    EXPECT_EQ(accounting.model.bytes, bytes);
    EXPECT_EQ(accounting.model.parameters, parameters);
    // Worked out by hand: a layer has 4 matrices of 4 x 4, 3 of 4 x 32 and 2 norms of 4 = 456; the embedding
    // is 8 x 4, tied; the final norm 4.
    EXPECT_EQ(accounting.dense.parameters, 3 * 456u + 32 + 4);
    EXPECT_EQ(accounting.model.parameters, 456u + (456 - 4 * 8) + 32 + 4);
    EXPECT_EQ(accounting.model.kv_bytes_per_token, 3u * 2 * 4 * 2);
    EXPECT_EQ(accounting.model.flops_per_token, 2u * (3 * (4 * 16 + 3 * 128) + 32));
    EXPECT_EQ(accounting.dense.flops_per_token, accounting.model.flops_per_token);
}

// As save_model(), which reads the file back before it is written.
void write_unchecked(const Model& model, const std::string& path) {
    std::vector<GgufOutputTensor> tensors;
    for (const auto& [name, tensor] : model.tensors)
        tensors.push_back({name, tensor.type, tensor.shape,
                           [&tensor](const auto& sink) { sink(TensorBytes(tensor).bytes()); }});
    write_gguf(path, true, model.metadata, tensors);
}

// Keys that say something else than the model: nothing is written.
TEST(Model, AFileThatWouldReadBackAsAnotherModelIsNotWritten) {
    const TempFolder folder;
    const auto refused = [&](const std::string& key, const GgufValue& value, const std::string& message) {
        Model model = small_model({}, numbered);
        EXPECT_NO_THROW(save_model(model, folder / "good.gguf", true));
        model.metadata.set("llama." + key, value);
        EXPECT_EQ(code_of([&] { save_model(model, folder / "m.gguf", false); }, message),
                  ErrorCode::internal);
        EXPECT_EQ(folder.files(), std::vector<std::string>{"good.gguf"});
    };
    refused("feed_forward_length", GgufValue::u32(64), "ffn.gate: tensor 'blk.0.ffn_gate.weight' has shape");
    refused("context_length", GgufValue::u32(65), "context length 65 instead of 64");
    refused("rope.freq_base", GgufValue::f32(5), "layer 0: RoPE base 5 instead of 10000");
    refused("attention.sliding_window", GgufValue::u32(8), "layer 0: window 8 instead of 0");
    refused("attention.layer_norm_rms_epsilon", GgufValue::f32(1e-3F),
            "epsilon of norms 0.001 instead of 1e-05");
}

TEST(Model, UnsupportedArchitectureIsNamed) {
    const TempFolder folder;
    Model model = small_model({}, numbered);
    model.metadata.set("general.architecture", GgufValue::string("lama"));
    write_unchecked(model, folder / "m.gguf");
    try {
        load_model(folder / "m.gguf");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        EXPECT_NE(std::string(error.what()).find("did you mean 'llama'"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("m.gguf"), std::string::npos) << error.what();
    }
}

TEST(Model, ConfigurationErrorsNameTheKey) {
    const TempFolder folder;
    const auto broken = [&](const std::string& key, const GgufValue& value) {
        Model model = small_model({}, numbered);
        model.metadata.set(key, value);
        write_unchecked(model, folder / "m.gguf");
        try {
            load_model(folder / "m.gguf");
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    for (const char* key : {"block_count", "embedding_length", "attention.head_count",
                            "attention.head_count_kv", "feed_forward_length", "context_length"}) {
        const std::string message = broken(std::string("llama.") + key, GgufValue::u32(0));
        EXPECT_NE(message.find(key), std::string::npos) << message;
    }
    EXPECT_NE(broken("llama.expert_count", GgufValue::u32(8)).find("expert_used_count"), std::string::npos);
    EXPECT_NE(broken("llama.rope.scaling.type", GgufValue::string("longrope")).find("longrope"),
              std::string::npos);
    EXPECT_NE(broken("llama.rope.dimension_count", GgufValue::u32(3)).find("dimension_count"),
              std::string::npos);
    EXPECT_NE(broken("llama.rope.freq_base", GgufValue::f32(-1)).find("freq_base"), std::string::npos);
}

}  // namespace
}  // namespace refold
