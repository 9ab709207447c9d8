// Chooses the next token: greedy, or drawn from what libllama's chain of samplers leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// What the choices of one sequence leave for its next one. A copy is what a draft begins with.
struct SamplerState {
    std::optional<double> mirostat_bound = {};  // bits; none before the first choice
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
    // penalties; `state`: of the sequence, null for its first token. Throws Error(input) when the logit of
    // the chosen token is not a finite number. One sampler serves any number of sequences, in one thread.
    int32_t choose(std::span<const float> logits, const DrawPlace& place,
                   std::span<const int32_t> history = {}, SamplerState* state = nullptr);
    // The distribution that choose() draws a sequence's first token from: tokens with a probability above 0,
    // in any order. Throws as choose() does.
    std::vector<TokenProbability> probabilities(std::span<const float> logits,
                                                std::span<const int32_t> history = {});

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
