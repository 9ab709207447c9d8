// Statistics of a row of logits.
#pragma once

#include <cstdint>
#include <span>

namespace refold {

struct LogitMeasures {
    int32_t best = 0;  // the likeliest token, the first one on ties
    float largest = 0, second = 0;
    double log_sum_exp = 0;
    double entropy = 0;  // nats

    double probability() const;  // of the likeliest token
    double margin() const;       // by which it exceeds the second probability
};

// Needs at least one logit. One SIMD pass, with sums in float64.
LogitMeasures measure_logits(std::span<const float> logits);

}  // namespace refold
