// Shared by the tests of factoring methods: models, golden values and distances.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/compress.h"
#include "compress/fixtures.h"
#include "compress/small_model.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/save.h"
#include "model/without_sharing.h"

namespace refold {

using Settings = std::vector<std::string>;

inline Compression planned(const Model& model, const char* method, const Settings& settings) {
    return plan(model, recipe_from_method(method, settings));
}

// The tensors of the result stay readable after `work` is gone.
inline Compression compressed(const Model& model, const char* method, const Settings& settings) {
    Work work;
    return compress(model, recipe_from_method(method, settings), "test", work);
}

inline nlohmann::json details_of(const Compression& result, size_t step = 0) {
    return nlohmann::json::parse(result.steps[step].report.details);
}

inline Model fixture(const std::string& name) {
    return load_model(std::string(REFOLD_FIXTURES) + "/" + name);
}

inline std::vector<std::string> fixture_families() { return unshared_fixtures(); }

// A model without weights, of the size in a Hugging Face config.json.
inline Model shapes_of(const nlohmann::json& config) {
    const TempFolder folder;
    std::ofstream(folder / "config.json") << config.dump();
    return load_model(folder / "config.json");
}

inline nlohmann::json llama_config(int64_t layers, int64_t embd, int64_t heads, int64_t ff) {
    return {{"model_type", "llama"},        {"architectures", {"LlamaForCausalLM"}},
            {"hidden_size", embd},          {"num_hidden_layers", layers},
            {"num_attention_heads", heads}, {"num_key_value_heads", heads},
            {"intermediate_size", ff},      {"vocab_size", 32000},
            {"rms_norm_eps", 1e-5},         {"max_position_embeddings", 4096},
            {"hidden_act", "silu"},         {"tie_word_embeddings", false},
            {"torch_dtype", "float16"}};
}

inline std::vector<float> weights(const Model& model, size_t layer, Slot slot) {
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

inline double square(const std::vector<float>& x) {
    double sum = 0;
    for (const float v : x) sum += static_cast<double>(v) * v;
    return sum;
}

inline std::vector<float> difference(std::vector<float> a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) a[i] -= b[i];
    return a;
}

// Relative error of `slots` of a layer: Frobenius norm of the difference over that of the original.
inline double relative_loss(const Model& changed, const Model& original, size_t layer,
                            const std::vector<Slot>& slots) {
    double left = 0, all = 0;
    for (const Slot slot : slots) {
        const std::vector<float> before = weights(original, layer, slot);
        left += square(difference(weights(changed, layer, slot), before));
        all += square(before);
    }
    return std::sqrt(left / all);
}

inline std::vector<float> golden(const std::string& file, const std::string& tensor) {
    const SafetensorsFile read = read_safetensors(std::string(REFOLD_FIXTURES) + "/methods/" + file);
    const auto& view = read.tensors.at(tensor);
    std::vector<float> out(view.data.size() / sizeof(float));
    std::memcpy(out.data(), view.data.data(), view.data.size());
    return out;
}

// Logits, or hidden states of an encoder without a head.
inline std::vector<float> outputs(const Model& model, std::span<const int32_t> tokens) {
    const EngineOptions options{.threads = 1, .context = 64, .f32 = true};
    const Model dense = without_sharing(model);
    if (model.config.causal) return all_logits(dense, tokens, options);
    const Encoding encoding = SingleSequence(dense, options).encode({tokens, {}, {}});
    return encoding.logits.empty() ? encoding.last_hidden_state : encoding.logits;
}

// Writes and reads the model: topology and values are the same, bytes are as accounted.
inline void expect_round_trip(const Compression& result) {
    const TempFolder folder;
    save_model(result.model, folder / "model.gguf", false);
    const Model loaded = load_model(folder / "model.gguf");
    EXPECT_EQ(loaded.topology, result.model.topology);
    EXPECT_EQ(account(loaded).model.parameters, result.after().parameters);
    EXPECT_EQ(account(loaded).model.bytes, result.after().bytes);
    for (const auto& [name, tensor] : result.model.tensors)
        EXPECT_EQ(bytes_of(loaded, name), bytes_of(result.model, name)) << name;
}

// A second run in the same work folder reuses `count` results and gives the same tensors; `other` settings
// reuse nothing.
struct Resumption {
    const char* method;
    Settings settings, other;
    size_t count;
};
inline void expect_resumable(const Model& model, const Resumption& r) {
    const TempFolder folder;
    const Recipe recipe = recipe_from_method(r.method, r.settings);
    Work first(folder / "work"), second(folder / "work"), third(folder / "work");
    const Compression once = compress(model, recipe, "test", first);
    EXPECT_EQ(first.reused(), 0U);
    const Compression again = compress(model, recipe, "test", second);
    EXPECT_EQ(second.reused(), r.count);
    EXPECT_EQ(again.steps[0].report.lines, once.steps[0].report.lines);
    for (const auto& [name, tensor] : once.model.tensors)
        EXPECT_EQ(bytes_of(again.model, name), bytes_of(once.model, name)) << name;
    compress(model, recipe_from_method(r.method, r.other), "test", third);
    EXPECT_EQ(third.reused(), 0U);
}

// A dry run gives the result's tensors without values.
inline void expect_planned(const Model& model, const char* method, const Settings& settings) {
    const Compression plan = planned(model, method, settings), done = compressed(model, method, settings);
    EXPECT_EQ(plan.after().parameters, done.after().parameters);
    EXPECT_EQ(plan.after().bytes, done.after().bytes);
    EXPECT_EQ(plan.model.topology, done.model.topology);
    bool changed = false;
    for (const auto& [name, tensor] : plan.model.tensors) {
        EXPECT_EQ(tensor.shape, done.model.tensor(name).shape) << name;
        EXPECT_EQ(tensor.type, done.model.tensor(name).type) << name;
        if (model.tensors.contains(name)) continue;
        changed = true;
        expect_error(ErrorCode::internal, {"dry run"}, [&, n = name] { bytes_of(plan.model, n); });
    }
    EXPECT_TRUE(changed);
}

inline const SmallShape kFactorShape = {
    .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 8, .embd = 24, .ff = 40};

inline Model factor_model(const std::map<Slot, DType>& types = {}) {
    return small_model(kFactorShape, scattered, types);
}

// Layers 0 and 2 have the same weights.
inline Model tied_model() {
    Model model = factor_model();
    model.topology.layers[2] = model.topology.layers[0];
    model.drop_unreferenced();
    return model;
}

inline Model model_with_nan(Slot slot) {
    return small_model(kFactorShape, [=](size_t layer, Slot s, int64_t row, int64_t column) {
        return layer == 1 && s == slot && row == 3 && column == 5 ? std::nanf("")
                                                                  : scattered(layer, s, row, column);
    });
}

}  // namespace refold
