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

void observe(Histogram& histogram, double value) {
    const auto bucket = std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value);
    ++histogram.counts[static_cast<size_t>(bucket - histogram.bounds.begin())];
    histogram.sum += value;
}

SchedulerStatus new_status() {
    SchedulerStatus out;
    out.first_token = make_histogram({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60});
    out.between_tokens = make_histogram({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
    const Histogram times =
        make_histogram({0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600});
    out.queue = out.prefill = out.decode = out.in_slot = out.whole = times;
    const Histogram lengths =
        make_histogram({1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000});
    out.prompt_length = out.generated_length = out.most_length = lengths;
    return out;
}

}  // namespace refold
