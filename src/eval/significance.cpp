#include "eval/significance.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "core/error.h"

namespace refold {

double mcnemar_exact(int64_t only_a, int64_t only_b) {
    const auto n = static_cast<double>(only_a + only_b);
    double tail = 0;
    for (int64_t k = 0; k <= std::min(only_a, only_b); ++k) {
        const auto x = static_cast<double>(k);
        tail +=
            std::exp(std::lgamma(n + 1) - std::lgamma(x + 1) - std::lgamma(n - x + 1) - n * std::log(2.0));
    }
    return std::min(1.0, 2 * tail);
}

double normal_two_sided(double z) { return std::erfc(std::abs(z) / std::sqrt(2.0)); }

BootstrapInterval paired_bootstrap(const BootstrapRows& rows,
                                   const std::function<double(std::span<const double>)>& statistic,
                                   const BootstrapOptions& options) {
    const size_t items = rows.items();
    if (items < 2) fail(ErrorCode::internal, "bootstrap", "got {} items, expected at least 2", items);
    std::mt19937_64 random(options.seed);
    std::uniform_int_distribution<size_t> draw(0, items - 1);
    std::vector<double> found, sums(rows.columns);
    int below = 0, above = 0;
    for (int r = 0; r < options.resamples; ++r) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (size_t i = 0; i < items; ++i) {
            const double* row = &rows.values[draw(random) * rows.columns];
            for (size_t c = 0; c < rows.columns; ++c) sums[c] += row[c];
        }
        const double x = statistic(sums);
        below += x <= 0 ? 1 : 0;
        above += x >= 0 ? 1 : 0;
        found.push_back(x);
    }
    std::sort(found.begin(), found.end());
    const auto percentile = [&](double part) {
        const double at = part * static_cast<double>(found.size() - 1);
        const auto low = static_cast<size_t>(at);
        const size_t high = std::min(low + 1, found.size() - 1);
        return found[low] + (at - static_cast<double>(low)) * (found[high] - found[low]);
    };
    // Counts the observed result as well, so that p is never 0.
    const double side = std::min(below, above) + 1;
    return {percentile(0.025), percentile(0.975), std::min(1.0, 2 * side / (options.resamples + 1))};
}

}  // namespace refold
