// What a row of logits says of the next token.
#pragma once

#include <cstdint>
#include <span>

namespace refold {

struct LogitMeasures {
    int32_t best = 0;  // the likeliest token, the first of equals
    float largest = 0, second = 0;
    double log_sum_exp = 0;
    double entropy = 0;  // nats

    double probability() const;  // of the likeliest token
    double margin() const;       // before the next one
};

// Of at least one logit; SIMD, one pass over them, sums in float64.
LogitMeasures measure_logits(std::span<const float> logits);

}  // namespace refold
