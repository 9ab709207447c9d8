// Calibrated methods, on small models and random text.
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "compress/loop_fixtures.h"

namespace refold {

// `count` sequences of random tokens.
inline Calibration random_text(const Model& model, int64_t count, int64_t length, uint32_t seed = 1) {
    const auto tokens = random_tokens(static_cast<size_t>(count * length), model.config.n_vocab, seed);
    return make_calibration("text.txt", "random", tokens, {.tokens = count * length, .length = length});
}

// Each string is a step: "uniattn superblocks=1-2".
inline Recipe recipe_of(const std::vector<std::string>& steps) {
    Recipe recipe;
    for (const std::string& step : steps) {
        std::istringstream words(step);
        std::string method;
        words >> method;
        std::vector<std::string> settings;
        for (std::string setting; words >> setting;) settings.push_back(setting);
        recipe.steps.push_back(recipe_from_method(method, settings).steps[0]);
    }
    return recipe;
}

inline Compression calibrated(const Model& model, const std::vector<std::string>& steps,
                              const Calibration& text) {
    Work work;
    return compress(model, recipe_of(steps), "test", work, {&text, 1});
}

inline Compression planned(const Model& model, const std::vector<std::string>& steps) {
    return plan(model, recipe_of(steps));
}

inline nlohmann::json details_of(const Compression& compression) {
    return nlohmann::json::parse(compression.steps.back().report.details);
}

// Weights about as large as those of a trained model, so that layers attend differently and their order
// matters.
inline float scattered_small(size_t layer, Slot slot, int64_t row, int64_t column) {
    return is_vector(slot) ? 1 + 0.1F * scattered(layer, slot, row, column)
                           : 0.4F * scattered(layer, slot, row, column);
}

inline bool is_decoder(const Model& model) { return model.config.causal; }

inline std::vector<std::string> fixture_decoders() {
    std::vector<std::string> names;
    for (const auto& name : fixture_models()) {
        if (is_decoder(fixture_model(name))) names.push_back(name);
    }
    return names;
}

// Gives two layers the same weights in `slots`, and makes the first add nothing to the residual stream, so
// that the second one's attention has the same input.
inline Model equal_attention(const SmallShape& shape, size_t first, const std::vector<Slot>& slots) {
    const auto is_shared = [slots](Slot slot) {
        return slot == Slot::attn_norm || std::find(slots.begin(), slots.end(), slot) != slots.end();
    };
    return small_model(shape, [=](size_t layer, Slot slot, int64_t row, int64_t column) {
        if (layer == first && (slot == Slot::attn_o || slot == Slot::ffn_down)) return 0.0F;
        return scattered_small(layer == first + 1 && is_shared(slot) ? first : layer, slot, row, column);
    });
}

}  // namespace refold
