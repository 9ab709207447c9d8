// How far apart two models' predictions are.
#pragma once

#include <cmath>

#include "engine/compare.h"

namespace refold {

// The length of the difference of all logits of 20 random tokens, in float32.
inline double distance(const Model& a, const Model& b) {
    const auto tokens = random_tokens(20, a.config.n_vocab, 5);
    const EngineOptions options{.threads = 1, .context = 32, .f32 = true};
    const auto x = all_logits(a, tokens, options), y = all_logits(b, tokens, options);
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) squares += std::pow(static_cast<double>(x[i]) - y[i], 2);
    return std::sqrt(squares);
}

}  // namespace refold
