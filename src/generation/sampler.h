// Chooses the next token: greedy, or drawn from what libllama's chain of samplers leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "refold/generation.h"

namespace refold {

struct TokenProbability {
    int32_t token = 0;
    double probability = 0;
};

// What a draw depends on beside the distribution. The same numbers are drawn for a place however the logits
// came about, so that a token drafted by an early loop is mostly the one that all loops choose.
struct DrawPlace {
    uint64_t seed = 0;
    int64_t position = 0;  // in its sequence, of the token that is drawn
};

class Sampler {
public:
    // `options.seed` does not matter: see DrawPlace. Throws Error(usage) for values out of range:
    // check_sampling().
    explicit Sampler(const SamplingOptions& options);
    ~Sampler();
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;
    Sampler(Sampler&&) noexcept;
    Sampler& operator=(Sampler&&) noexcept;

    // Some penalty is on, so choices depend on the tokens before.
    bool uses_history() const;

    // The index of the chosen token. `logits` [n_vocab]; `history`: the sequence's tokens so far, for the
    // penalties. Throws Error(input) when the logit of the chosen token is not a finite number.
    int32_t choose(std::span<const float> logits, const DrawPlace& place,
                   std::span<const int32_t> history = {});
    // The distribution that choose() draws from: tokens with a probability above 0, in any order. Throws as
    // choose() does.
    std::vector<TokenProbability> probabilities(std::span<const float> logits,
                                                std::span<const int32_t> history = {});

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
