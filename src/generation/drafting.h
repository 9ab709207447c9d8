// Speculative sampling (Leviathan et al. 2023, algorithm 1): early loops draft tokens and all loops verify
// them; the tokens are distributed as if all loops had chosen each. With greedy choice every distribution has
// one token.
#pragma once

#include <random>
#include <span>
#include <vector>

#include "generation/sampler.h"

namespace refold {

struct Draft {
    int32_t token = 0;
    std::vector<TokenProbability> drawn_from;
};

class Drafting {
public:
    explicit Drafting(uint32_t seed);

    // `history`: the tokens before the chosen one, earlier drafts included.

    // Drafts a token from the logits of an early loop.
    Draft draft(Sampler& sampler, std::span<const float> logits, std::span<const int32_t> history = {});
    // Returns the token to use, by the logits of the last loop: the draft, or one that makes up for refusing
    // it.
    int32_t verify(Sampler& sampler, const Draft& draft, std::span<const float> logits,
                   std::span<const int32_t> history = {});

private:
    int32_t draw(std::span<const TokenProbability> distribution, double sum);

    std::mt19937_64 random_;
};

}  // namespace refold
