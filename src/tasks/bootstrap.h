// Bootstrap standard errors, for figures that are no means.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace refold {

// Computes a figure from the sums of the items' values and the number of items.
using Aggregate = std::function<double(std::span<const double> sums, double items)>;

// Sample standard deviation of `aggregate` over `draws` resamples, each of as many items as there are, drawn
// with replacement. `values` are [items, width]. The resamples are lm-evaluation-harness's: chunks of up to
// 1000 with Python's random numbers, chunk i seeded with i; draws beyond the last whole chunk are left out.
double bootstrap_error(std::span<const double> values, size_t width, const Aggregate& aggregate, int draws,
                       int threads);

}  // namespace refold
