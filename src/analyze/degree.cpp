#include "analyze/degree.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "compress/head_sharing/matching.h"
#include "compress/method/selection.h"

namespace refold {
namespace {

// Matching takes dot products, which are cosines for vectors of length 1.
std::vector<double> gram_of(const SquareMatrix& cosines) {
    const size_t n = cosines.size();
    std::vector<double> gram(n * n, 0.0);
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < i; ++j) gram[i * n + j] = std::isnan(cosines(i, j)) ? 0 : cosines(i, j);
        gram[i * n + i] = 1;
    }
    return gram;
}

// The candidates that have an attention map.
struct MappedUnits {
    std::vector<Unit> units;
    std::vector<size_t> index;  // among all candidates
};

MappedUnits mapped_units(const HeadCandidates& candidates, const std::vector<SquareMatrix>& maps) {
    MappedUnits mapped;
    for (size_t i = 0; i < candidates.units.size(); ++i) {
        if (maps.empty() || std::isnan(maps.front()(i, i))) continue;
        mapped.units.push_back(candidates.units[i]);
        mapped.index.push_back(i);
    }
    return mapped;
}

SquareMatrix selected(const SquareMatrix& all, const std::vector<size_t>& index) {
    return expanded(all, std::vector<std::optional<size_t>>(index.begin(), index.end()));
}

std::vector<Match> top_pairs(const Model& model, const std::vector<Unit>& units, const SquareMatrix& cosines,
                             size_t count) {
    std::vector<bool> later;
    for (const Unit& unit : units) later.push_back(unit.layer > units.front().layer);
    return largest(best_matches(model, units, gram_of(cosines), later), count);
}

}  // namespace

Degree degree(const Model& model, const HeadCandidates& candidates, const std::vector<SquareMatrix>& maps,
              double ratio) {
    const MappedUnits mapped = mapped_units(candidates, maps);
    Degree out;
    out.candidates =
        static_cast<size_t>(std::count_if(mapped.units.begin(), mapped.units.end(), [&](const Unit& unit) {
            return unit.layer > mapped.units.front().layer;
        }));
    out.k = std::min(out.candidates, std::max<size_t>(1, part_of(ratio, mapped.units.size())));
    if (out.k == 0) return out;
    const SquareMatrix weights = selected(cosines_of(candidates.gram, candidates.units.size()), mapped.index);
    const auto a = top_pairs(model, mapped.units, weights, out.k);
    for (const SquareMatrix& sample : maps) {
        const auto b = top_pairs(model, mapped.units, selected(sample, mapped.index), out.k);
        size_t pairs = 0, heads = 0;
        for (const Match& x : a) {
            const auto y =
                std::find_if(b.begin(), b.end(), [&](const Match& m) { return m.later == x.later; });
            if (y == b.end()) continue;
            ++heads;
            if (y->former == x.former) ++pairs;
        }
        out.pairs.push_back(static_cast<double>(pairs) / static_cast<double>(out.k));
        out.heads.push_back(static_cast<double>(heads) / static_cast<double>(out.k));
    }
    return out;
}

std::vector<std::set<size_t>> random_samples(size_t sequences, int count, size_t size) {
    std::mt19937_64 random(0);
    if (size == 0) size = std::max<size_t>(1, sequences / 2);
    std::vector<std::set<size_t>> samples(static_cast<size_t>(count));
    for (auto& sample : samples) {
        std::vector<size_t> order(sequences);
        std::iota(order.begin(), order.end(), size_t{0});
        for (size_t i = 0; i < size && i < sequences; ++i) {
            std::swap(order[i], order[i + random() % (sequences - i)]);
            sample.insert(order[i]);
        }
    }
    return samples;
}

}  // namespace refold
