#include "serve/status.h"

#include <algorithm>
#include <utility>

namespace refold {

Histogram make_histogram(std::vector<double> bounds) {
    Histogram histogram;
    histogram.counts.resize(bounds.size() + 1);
    histogram.bounds = std::move(bounds);
    return histogram;
}

void observe(Histogram& histogram, double seconds) {
    const auto bucket = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), seconds);
    ++histogram.counts[static_cast<size_t>(bucket - histogram.bounds.begin())];
    histogram.sum += seconds;
}

}  // namespace refold
