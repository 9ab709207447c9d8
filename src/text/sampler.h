// Next-token choice: greedy, temperature, top-k, top-p, seeded; by libllama's sampler chain.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace refold {

struct SamplingOptions {
    float temperature = 0.0F;  // 0: greedy
    int top_k = 40;            // 0: all
    float top_p = 0.95F;       // 1: all
    uint32_t seed = 0;
};

struct TokenProbability {
    int32_t token = 0;
    double probability = 0;
};

class Sampler {
public:
    // Throws Error(usage) for values out of range.
    explicit Sampler(const SamplingOptions& options);
    ~Sampler();
    Sampler(const Sampler&) = delete;
    Sampler& operator=(const Sampler&) = delete;

    // Index of the chosen token. Throws Error(input) when its logit is not a finite number.
    int32_t choose(std::span<const float> logits);
    // The distribution that choose() draws from: tokens with a probability above 0, in any order. Throws as
    // choose() does.
    std::vector<TokenProbability> probabilities(std::span<const float> logits);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
