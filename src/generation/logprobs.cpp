#include "generation/logprobs.h"

#include <algorithm>
#include <numeric>

#include "exit/log_softmax.h"

namespace refold {

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int top) {
    const double total = log_sum_exp(logits);
    const auto logprob = [&](int32_t id) {
        return static_cast<double>(logits[static_cast<size_t>(id)]) - total;
    };
    TokenLogprob out{token, logprob(token), {}};
    if (top <= 0) return out;
    std::vector<int32_t> best(std::min(logits.size(), static_cast<size_t>(top)));
    std::vector<int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    // Of equal logits the first token.
    std::partial_sort_copy(ids.begin(), ids.end(), best.begin(), best.end(), [&](int32_t a, int32_t b) {
        const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x != y ? x > y : a < b;
    });
    for (const int32_t id : best) out.top.emplace_back(id, logprob(id));
    return out;
}

}  // namespace refold
