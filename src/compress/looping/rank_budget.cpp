#include "compress/looping/rank_budget.h"

#include <algorithm>

namespace refold::relax {

std::vector<int64_t> ranks_for_budget(const std::vector<Spectrum>& spectra, int64_t parameters) {
    struct Direction {
        double gain;
        size_t matrix;
    };
    std::vector<Direction> directions;
    for (size_t m = 0; m < spectra.size(); ++m) {
        for (const double s : spectra[m].values) {
            if (s > 0) directions.push_back({s * s / static_cast<double>(spectra[m].in + spectra[m].out), m});
        }
    }
    // Stable, so that the result does not depend on the sort: of equal values of a matrix the first comes
    // first.
    std::stable_sort(directions.begin(), directions.end(),
                     [](const Direction& a, const Direction& b) { return a.gain > b.gain; });
    std::vector<int64_t> ranks(spectra.size());
    for (const Direction& d : directions) {
        const int64_t cost = spectra[d.matrix].in + spectra[d.matrix].out;
        if (cost > parameters) continue;
        parameters -= cost;
        ++ranks[d.matrix];
    }
    return ranks;
}

}  // namespace refold::relax
