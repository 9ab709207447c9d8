#include "model/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace refold {

std::vector<Route> route(std::span<const float> scores, int64_t used, bool normalized) {
    std::vector<int64_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    const auto better = [&](int64_t a, int64_t b) {
        const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
        return x > y || (x == y && a < b);
    };
    std::partial_sort(order.begin(), order.begin() + used, order.end(), better);
    const float largest = scores[static_cast<size_t>(order.front())];
    const auto power = [&](int64_t expert) {
        return std::exp(static_cast<double>(scores[static_cast<size_t>(expert)] - largest));
    };
    double sum = 0;
    for (size_t i = 0; i < (normalized ? static_cast<size_t>(used) : order.size()); ++i)
        sum += power(order[i]);
    std::vector<Route> routes;
    for (int64_t i = 0; i < used; ++i) {
        const int64_t expert = order[static_cast<size_t>(i)];
        routes.push_back({expert, static_cast<float>(power(expert) / sum)});
    }
    return routes;
}

}  // namespace refold
