#include "generation/mirostat.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace refold {
namespace {

bool likelier(const llama_token_data& a, const llama_token_data& b) { return a.logit > b.logit; }

double log_sum(std::span<const llama_token_data> candidates) {
    const double largest = std::ranges::min_element(candidates, likelier)->logit;
    double sum = 0;
    for (const auto& one : candidates) sum += std::exp(one.logit - largest);
    return largest + std::log(sum);
}

size_t candidates_of_zipf(std::span<llama_token_data> candidates, double bound) {
    constexpr size_t kLikeliest = 100;
    const size_t n = std::min(kLikeliest, candidates.size());
    std::ranges::partial_sort(candidates, candidates.begin() + static_cast<ptrdiff_t>(n), likelier);
    double products = 0, squares = 0;
    for (size_t i = 0; i + 1 < n && std::isfinite(candidates[i + 1].logit); ++i) {
        const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
        products += t * (static_cast<double>(candidates[i].logit) - candidates[i + 1].logit);
        squares += t * t;
    }
    const double exponent = products / squares, excess = exponent - 1;
    const auto all = static_cast<double>(candidates.size());
    const double k = std::pow(excess * std::exp2(bound) / (1 - std::pow(all, -excess)), 1 / exponent);
    // An exponent of 0 or 1, or too few candidates to estimate it.
    if (!std::isfinite(k)) return n < 2 ? 1 : candidates.size();
    return static_cast<size_t>(std::clamp(k, 1.0, all));
}

}  // namespace

std::span<llama_token_data> mirostat_candidates(std::span<llama_token_data> candidates,
                                                const MirostatOptions& options, double bound) {
    if (options.version == 1) {
        // Numbers that are none have no order; the draw finds them.
        if (std::ranges::any_of(candidates, [](const auto& one) { return std::isnan(one.logit); }))
            return candidates;
        const size_t k = candidates_of_zipf(candidates, bound);
        std::ranges::nth_element(candidates, candidates.begin() + static_cast<ptrdiff_t>(k - 1), likelier);
        return candidates.first(k);
    }
    const double least = log_sum(candidates) - bound * std::numbers::ln2;
    std::iter_swap(candidates.begin(), std::ranges::min_element(candidates, likelier));
    const auto rest = std::partition(candidates.begin() + 1, candidates.end(), [least](const auto& one) {
        return static_cast<double>(one.logit) >= least;
    });
    return candidates.first(static_cast<size_t>(rest - candidates.begin()));
}

double mirostat_bound(std::span<const llama_token_data> left, llama_token token,
                      const MirostatOptions& options, double bound) {
    const auto chosen = std::ranges::find(left, token, &llama_token_data::id);
    const double surprise = (log_sum(left) - chosen->logit) / std::numbers::ln2;
    return bound - options.eta * (surprise - options.tau);
}

}  // namespace refold
