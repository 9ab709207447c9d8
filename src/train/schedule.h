// What happens in which step.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

#include "train/options.h"

namespace refold {

// The learning rate of step 0, 1, ..., as in transformers' get_cosine_schedule_with_warmup and
// get_constant_schedule_with_warmup, except that cosine ends at final_rate (Loshchilov & Hutter 2017,
// equation 5).
inline double learning_rate_at(const TrainOptions& o, int64_t step) {
    const auto at = static_cast<double>(step), warm = static_cast<double>(o.warmup);
    if (step < o.warmup) return o.learning_rate * at / warm;
    if (o.schedule == ScheduleKind::constant) return o.learning_rate;
    const double part = std::min(1.0, (at - warm) / std::max(1.0, static_cast<double>(o.steps) - warm));
    return o.learning_rate *
           (o.final_rate + (1 - o.final_rate) * (1 + std::cos(std::numbers::pi * part)) / 2);
}

// The step after which a run keeps model `number`, 1 to `keep`: the last one at its end.
inline int64_t kept_step(const TrainOptions& o, int64_t number) { return number * o.steps / o.keep; }
// The number of the model that is kept after `step` steps; 0: none is. `keep` is at most `steps`.
inline int64_t kept_number(const TrainOptions& o, int64_t step) {
    const int64_t number = (step * o.keep + o.steps - 1) / o.steps;
    return number > 0 && kept_step(o, number) == step ? number : 0;
}

}  // namespace refold
