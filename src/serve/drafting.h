// Speculative sampling (Leviathan et al. 2023, algorithm 1): tokens drafted by early loops, verified by all
// of them, distributed as if all had chosen each. Greedy is the case of distributions of one token.
#pragma once

#include <random>
#include <span>
#include <vector>

#include "text/sampler.h"

namespace refold {

struct Draft {
    int32_t token = 0;
    std::vector<TokenProbability> drawn_from;
};

class Drafting {
public:
    explicit Drafting(uint32_t seed);

    // From the logits of an early loop.
    Draft draft(Sampler& sampler, std::span<const float> logits);
    // The token that counts, by the last loop's logits: the draft's, else one that makes up for refusing it.
    int32_t verify(Sampler& sampler, const Draft& draft, std::span<const float> logits);

private:
    int32_t draw(std::span<const TokenProbability> distribution, double sum);

    std::mt19937_64 random_;
};

}  // namespace refold
