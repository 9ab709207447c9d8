// Tests of significance for the difference of two results.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace refold {

// McNemar's exact test, two-sided, on the items that only one of two models got right: the probability of a
// split at least as uneven under p = 1/2 (binomial).
double mcnemar_exact(int64_t only_a, int64_t only_b);

// Two-sided probability of a difference of at least |z| standard errors under the normal distribution.
double normal_two_sided(double z);

struct BootstrapOptions {
    int resamples = 10000;
    uint64_t seed = 1234;
};

struct BootstrapInterval {
    double low = 0, high = 0;  // 2.5 % and 97.5 % percentiles
    double p = 1;              // two-sided: twice the smaller part of the resamples on one side of 0
};

// One row of quantities per item. A resample is the sum of as many rows as there are items, drawn with
// replacement. Both models' quantities are in one row, so pairs stay together.
struct BootstrapRows {
    size_t columns = 0;
    std::vector<double> values;  // [items][columns]

    size_t items() const { return columns == 0 ? 0 : values.size() / columns; }
};

// `statistic` computes the tested difference from the column sums. Needs at least two items. The same seed
// gives the same figures.
BootstrapInterval paired_bootstrap(const BootstrapRows& rows,
                                   const std::function<double(std::span<const double> sums)>& statistic,
                                   const BootstrapOptions& options);

}  // namespace refold
