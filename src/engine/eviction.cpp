#include "engine/eviction.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace refold {
namespace {

// A step has at most this fraction of the rows; more would leave too few old ones.
constexpr int64_t kStepsPerCache = 4;
constexpr int64_t kEvictionsPerCache = 16;

}  // namespace

const char* kv_policy_name(KvPolicy policy) {
    switch (policy) {
        case KvPolicy::h2o: return "h2o";
        case KvPolicy::recent: return "recent";
        default: return "none";
    }
}

int64_t EvictionOptions::rows(int64_t context) const {
    // 0.07 * 100 is a little more than 7.
    return static_cast<int64_t>(std::ceil(budget * static_cast<double>(context) - 1e-6));
}

int64_t longest_step(int64_t rows) { return std::max<int64_t>(1, rows / kStepsPerCache); }

int64_t rows_freed(int64_t tokens, int64_t rows) { return std::max(tokens, rows / kEvictionsPerCache); }

std::vector<int64_t> rows_that_stay(const EvictionOptions& options, int64_t used, int64_t keep,
                                    std::span<const float> scores) {
    const int64_t chosen =
        options.policy == KvPolicy::recent
            ? options.sinks
            : keep - static_cast<int64_t>(std::ceil(options.recent * static_cast<double>(keep) - 1e-6));
    // The rows to choose from; the most recent ones follow below.
    const int64_t recent = keep - chosen;
    std::vector<int64_t> rows(static_cast<size_t>(used - recent));
    std::iota(rows.begin(), rows.end(), 0);
    if (options.policy == KvPolicy::h2o) {
        const auto better = [&](int64_t a, int64_t b) {
            const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
            return x != y ? x > y : a > b;
        };
        std::nth_element(rows.begin(), rows.begin() + chosen, rows.end(), better);
        std::sort(rows.begin(), rows.begin() + chosen);
    }
    rows.resize(static_cast<size_t>(keep));
    std::iota(rows.begin() + chosen, rows.end(), used - recent);
    return rows;
}

}  // namespace refold
