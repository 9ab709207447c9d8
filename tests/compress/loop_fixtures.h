// Shared by the tests of recursive and relax.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "compress/compress.h"
#include "compress/fixtures.h"
#include "compress/small_model.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "model/load.h"
#include "model/materialize.h"
#include "model/save.h"

namespace refold {

inline std::vector<std::string> fixture_models() { return unshared_fixtures(); }

inline Model fixture_model(const std::string& name) {
    return load_model(std::string(REFOLD_FIXTURES) + "/hf/" + name);
}

// Logits, or hidden states of an encoder without a head.
inline std::vector<float> outputs_of(const Model& model) {
    const auto tokens = random_tokens(40, model.config.n_vocab, 3);
    const EngineOptions options{.threads = 1, .context = 64, .f32 = true};
    if (model.config.causal) return all_logits(model, tokens, options);
    const Encoding encoding = SingleSequence(model, options).encode({tokens, {}, {}});
    return encoding.logits.empty() ? encoding.last_hidden_state : encoding.logits;
}

// Number of loops with the shortest block of more than one layer, else of one layer.
inline std::string loops_of(const Model& model) {
    const size_t layers = model.topology.layers.size();
    for (size_t loops = 2; loops < layers; ++loops) {
        if (layers % loops == 0) return fmt::format("loops={}", loops);
    }
    return fmt::format("loops={}", layers);
}

inline Compression apply_method(const Model& model, const std::string& method,
                                const std::vector<std::string>& settings, Work& work) {
    return compress(model, recipe_from_method(method, settings), "test", work);
}

inline Compression plan_method(const Model& model, const std::string& method,
                               const std::vector<std::string>& settings) {
    return plan(model, recipe_from_method(method, settings));
}

inline std::vector<float> weight(const Model& model, size_t layer, Slot slot) {
    return materialize(model, model.topology.at(layer, slot), slot, layer);
}

inline const std::string& tensor_of(const Model& model, size_t layer, Slot slot) {
    return std::get<Dense>(model.topology.at(layer, slot)).tensor;
}

// Writes the model to a file and reads it.
inline Model saved_and_loaded(const Model& model) {
    const TempFolder folder;
    save_model(model, folder / "model.gguf", false);
    Model loaded = load_model(folder / "model.gguf");
    EXPECT_EQ(loaded.topology, model.topology);
    EXPECT_EQ(account(loaded).model.parameters, account(model).model.parameters);
    EXPECT_EQ(account(loaded).model.bytes, account(model).model.bytes);
    return loaded;
}

// Shapes and types, but no numbers.
inline Model without_numbers(Model model) {
    for (auto& [name, tensor] : model.tensors) {
        tensor.mapped = {};
        tensor.produce = []() -> std::vector<std::byte> { throw std::runtime_error("weights were read"); };
    }
    return model;
}

}  // namespace refold
