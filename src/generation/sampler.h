// Chooses the next token: greedy, or drawn by libllama's chain of samplers.
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

class Sampler {
public:
    // Throws Error(usage) for values out of range: check_sampling().
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
    int32_t choose(std::span<const float> logits, std::span<const int32_t> history = {});
    // The distribution that choose() draws from: tokens with a probability above 0, in any order. Throws as
    // choose() does.
    std::vector<TokenProbability> probabilities(std::span<const float> logits,
                                                std::span<const int32_t> history = {});

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
