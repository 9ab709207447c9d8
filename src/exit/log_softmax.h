#pragma once

#include <span>

namespace refold {

// log(sum(exp(x))) of float32 logits, SIMD, sums in float64.
double log_sum_exp(std::span<const float> x);

// Kullback-Leibler divergence of softmax(b) from softmax(a), in nats: sum of p_a (log p_a - log p_b).
double kl_divergence(std::span<const float> a, std::span<const float> b);

}  // namespace refold
