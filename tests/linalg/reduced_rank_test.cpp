// Maps of low rank for given inputs.
#include "linalg/reduced_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/code_of.h"
#include "linalg/compare.h"
#include "linalg/least_squares.h"

namespace refold {
namespace {

struct Case {
    int64_t inputs, outputs;
};
constexpr Case kCases[] = {{7, 5}, {5, 9}, {6, 6}};
constexpr int64_t kRows = 90;

// Inputs of very different sizes, and mixed.
std::vector<double> gram_of(int64_t inputs, int64_t directions) {
    const auto basis = random_values(inputs * directions, 3), z = random_values(kRows * directions, 4);
    std::vector<float> x(static_cast<size_t>(kRows * inputs));
    for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < inputs; ++i) {
            for (int64_t d = 0; d < directions; ++d)
                x[static_cast<size_t>(row * inputs + i)] += std::pow(2.0F, static_cast<float>(-d)) *
                                                            z[static_cast<size_t>(row * directions + d)] *
                                                            basis[static_cast<size_t>(i * directions + d)];
        }
    }
    LeastSquares sums(inputs, 0);
    sums.add(kRows, x.data(), nullptr);
    return {sums.gram().begin(), sums.gram().end()};
}

std::vector<float> difference(std::vector<float> a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
    return a;
}

TEST(ReducedRank, LosesTheEnergiesBeyondTheRank) {
    for (const auto& [inputs, outputs] : kCases) {
        const auto gram = gram_of(inputs, inputs);
        const auto w = random_values(inputs * outputs, 5);
        const auto energies = output_energies(gram, inputs, w);
        ASSERT_EQ(static_cast<int64_t>(energies.size()), std::min(inputs, outputs));
        const double all = output_energy(gram, inputs, w);
        EXPECT_NEAR(std::accumulate(energies.begin(), energies.end(), 0.0), all, 1e-6 * all);
        for (const int64_t rank : {1, 2, 4}) {
            const LowRankMap map = reduce_rank(gram, inputs, w, rank);
            EXPECT_EQ(static_cast<int64_t>(map.u.size()), rank * outputs);
            EXPECT_EQ(static_cast<int64_t>(map.v.size()), rank * inputs);
            const double tail = std::accumulate(energies.begin() + rank, energies.end(), 0.0),
                         lost = output_energy(gram, inputs, difference(product_of(map, inputs), w));
            EXPECT_NEAR(lost, tail, 1e-4 * tail + 1e-7 * all) << inputs << " " << outputs << " " << rank;
        }
        // Clipped to the full rank, which loses nothing.
        const LowRankMap whole = reduce_rank(gram, inputs, w, 100);
        EXPECT_LE(relative_difference(product_of(whole, inputs), w), 1e-5);
    }
}

// Of inputs in a subspace, its dimension is rank enough; the rest of the rank does no harm.
TEST(ReducedRank, InputsOfASubspaceNeedItsDimension) {
    for (const auto& [inputs, outputs] : kCases) {
        const auto gram = gram_of(inputs, 3);
        const auto w = random_values(inputs * outputs, 6);
        const double all = output_energy(gram, inputs, w);
        for (const int64_t rank : {3, 5}) {
            const auto left = difference(product_of(reduce_rank(gram, inputs, w, rank), inputs), w);
            EXPECT_LE(output_energy(gram, inputs, left), 1e-7 * all) << inputs << " " << outputs;
        }
        const auto left = difference(product_of(reduce_rank(gram, inputs, w, 2), inputs), w);
        EXPECT_GT(output_energy(gram, inputs, left), 1e-5 * all);
    }
}

TEST(ReducedRank, FactorForABasisIsTheBestOne) {
    for (const auto& [inputs, outputs] : kCases) {
        const auto gram = gram_of(inputs, inputs);
        const auto w = random_values(inputs * outputs, 7);
        const LowRankMap best = reduce_rank(gram, inputs, w, 3);
        // For the best V, the best U is its own.
        EXPECT_LE(relative_difference(factor_for(gram, inputs, w, best.v), best.u), 1e-3);
        // For any other V, no step away from U is better.
        LowRankMap map{{}, random_values(3 * inputs, 8)};
        map.u = factor_for(gram, inputs, w, map.v);
        const double error = output_energy(gram, inputs, difference(product_of(map, inputs), w));
        for (size_t i = 0; i < map.u.size(); ++i) {
            for (const float step : {-0.01F, 0.01F}) {
                LowRankMap other = map;
                other.u[i] += step;
                EXPECT_GT(output_energy(gram, inputs, difference(product_of(other, inputs), w)), error);
            }
        }
    }
}

TEST(ReducedRank, RefusesWhatIsNoGramMatrix) {
    std::vector<double> gram = gram_of(5, 5);
    gram[0] = std::nan("");
    const auto w = random_values(5 * 9, 1);
    EXPECT_EQ(code_of([&] { reduce_rank(gram, 5, w, 2); }, "Gram"), ErrorCode::input);
}

}  // namespace
}  // namespace refold
