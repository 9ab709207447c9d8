#include "generation/logprobs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "exit/log_softmax.h"

namespace refold {

TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int top) {
    const double total = log_sum_exp(logits);
    const auto logprob = [&](int32_t id) {
        return static_cast<double>(logits[static_cast<size_t>(id)]) - total;
    };
    TokenLogprob out{token, logprob(token), {}};
    if (top <= 0) return out;
    // A heap of the best so far, the least of them in front. Of equal logits the first token is better.
    std::vector<std::pair<float, int32_t>> best;
    const auto better = [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    const size_t count = std::min(logits.size(), static_cast<size_t>(top));
    for (size_t i = 0; i < logits.size(); ++i) {
        if (best.size() == count) {
            if (!(logits[i] > best.front().first)) continue;
            std::ranges::pop_heap(best, better);
            best.pop_back();
        }
        best.emplace_back(logits[i], static_cast<int32_t>(i));
        std::ranges::push_heap(best, better);
    }
    std::ranges::sort_heap(best, better);
    for (const auto& [logit, id] : best) out.top.emplace_back(id, logprob(id));
    return out;
}

}  // namespace refold
