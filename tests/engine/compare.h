// Logits of a model by the engine, and how far two sets are apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/argmax.h"
#include "engine/single_sequence.h"

namespace refold {

// The same options for an engine of one sequence.
inline EngineOptions of_one_sequence(EngineOptions options) {
    options.sequences = 1;
    options.kv_tokens = 0;
    options.by_loop = false;
    return options;
}

// [tokens, n_vocab], by an engine of one sequence.
inline std::vector<float> all_logits(const Model& model, std::span<const int32_t> tokens,
                                     EngineOptions options) {
    options.context = std::max<int64_t>(options.context, static_cast<int64_t>(tokens.size()));
    SingleSequence sequence(model, of_one_sequence(options));
    std::vector<float> out(tokens.size() * static_cast<size_t>(sequence.capabilities().n_vocab));
    sequence.evaluate_all(tokens, [&](size_t first, std::span<const float> logits) {
        std::copy(logits.begin(), logits.end(),
                  out.begin() +
                      static_cast<ptrdiff_t>(first * static_cast<size_t>(sequence.capabilities().n_vocab)));
    });
    return out;
}

inline std::vector<std::byte> saved_tokens(const Engine& engine, int32_t sequence, int64_t tokens) {
    std::vector<std::byte> out;
    engine.save_tokens(sequence, tokens, [&](std::span<const std::byte> piece) {
        out.insert(out.end(), piece.begin(), piece.end());
    });
    return out;
}

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
    double largest = a.size() == b.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        if (!(difference <= largest)) largest = difference;  // NaN counts as different
    }
    return largest;
}

// Relative to the largest expected number: random weights make activations of some hundreds.
inline double scaled_difference(std::span<const float> got, std::span<const float> expected) {
    double largest = 1;
    for (const float value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
    return largest_difference(got, expected) / largest;
}

inline std::vector<int32_t> random_tokens(size_t count, int64_t n_vocab, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> tokens(count);
    for (auto& token : tokens) token = static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab));
    return tokens;
}

}  // namespace refold
