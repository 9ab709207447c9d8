#include "linalg/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linalg/compare.h"
#include "linalg/reduced_rank.h"

namespace refold {
namespace {

// y = x w^T, rows of x [rows x inputs], w [outputs x inputs].
std::vector<float> applied(const std::vector<float>& w, const std::vector<float>& x, int64_t inputs) {
    const auto n = static_cast<size_t>(inputs);
    std::vector<float> y;
    for (size_t row = 0; row < x.size(); row += n) {
        for (size_t o = 0; o < w.size(); o += n) {
            double sum = 0;
            for (size_t i = 0; i < n; ++i) sum += static_cast<double>(w[o + i]) * x[row + i];
            y.push_back(static_cast<float>(sum));
        }
    }
    return y;
}

std::vector<float> with_noise(std::vector<float> values, float spread, unsigned seed) {
    const auto noise = random_values(static_cast<int64_t>(values.size()), seed);
    for (size_t i = 0; i < values.size(); ++i) values[i] += spread * noise[i];
    return values;
}

LeastSquares rows_of(int64_t inputs, int64_t outputs, const std::vector<float>& x,
                     const std::vector<float>& y) {
    LeastSquares out(inputs, outputs);
    out.add(static_cast<int64_t>(x.size()) / inputs, x.data(), y.data());
    return out;
}

// The mean of |W x - y|^2, row by row.
double error_by_rows(const std::vector<float>& w, const std::vector<float>& x, const std::vector<float>& y,
                     int64_t inputs) {
    const auto got = applied(w, x, inputs);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += std::pow(static_cast<double>(got[i]) - y[i], 2);
    return sum / (static_cast<double>(x.size()) / static_cast<double>(inputs));
}

TEST(LeastSquares, RecoversALinearMap) {
    constexpr int64_t kInputs = 13, kOutputs = 7;
    const auto w = random_values(kInputs * kOutputs, 1), x = random_values(kInputs * 600, 2);
    const LeastSquares squares = rows_of(kInputs, kOutputs, x, applied(w, x, kInputs));
    const std::vector<float> zeros(w.size());
    const auto got = squares.solve(0, zeros);
    EXPECT_LE(relative_difference(got, w), 1e-5);
    EXPECT_LE(squares.error(got), 1e-5 * squares.error(zeros));
    EXPECT_LE(relative_difference(squares.solve(0, random_values(kInputs * kOutputs, 3)), w), 1e-5);
    EXPECT_EQ(squares.rows(), 600);
    EXPECT_EQ(squares.inputs(), kInputs);
    EXPECT_EQ(squares.outputs(), kOutputs);
}

TEST(LeastSquares, OneNumberByHand) {
    // Sum x^2 = 14, sum x y = 20, sum y^2 = 29: w = 20/14; with ridge r towards p, (20 + 14 r p) / (14 + 14
    // r).
    const std::vector<float> x = {1, 2, 3}, y = {2, 3, 4};
    const LeastSquares squares = rows_of(1, 1, x, y);
    const std::vector<float> zero = {0}, four = {4}, one = {1};
    EXPECT_FLOAT_EQ(squares.solve(0, zero)[0], 20.0F / 14);
    EXPECT_FLOAT_EQ(squares.solve(0.5, zero)[0], 20.0F / 21);
    EXPECT_FLOAT_EQ(squares.solve(0.5, four)[0], (20.0F + 28) / 21);
    EXPECT_DOUBLE_EQ(squares.error(one), (14.0 - 40 + 29) / 3);
    EXPECT_DOUBLE_EQ(squares.error(zero), 29.0 / 3);
}

// At the solution the gradient of the documented sum is zero, and the sum is larger nearby.
TEST(LeastSquares, MinimisesWhatItSays) {
    constexpr int64_t kInputs = 5, kOutputs = 3, kRows = 40;
    const auto x = random_values(kInputs * kRows, 1), y = random_values(kOutputs * kRows, 2),
               prior = random_values(kInputs * kOutputs, 3);
    const LeastSquares squares = rows_of(kInputs, kOutputs, x, y);
    double diagonal = 0;
    for (const float value : x) diagonal += static_cast<double>(value) * value / kInputs;
    for (const double ridge : {0.0, 0.03, 1.0, 20.0}) {
        const auto cost = [&](const std::vector<float>& w) {
            double from_prior = 0;
            for (size_t i = 0; i < w.size(); ++i)
                from_prior += std::pow(static_cast<double>(w[i]) - prior[i], 2);
            return kRows * error_by_rows(w, x, y, kInputs) + ridge * diagonal * from_prior;
        };
        const auto w = squares.solve(ridge, prior);
        EXPECT_NEAR(squares.error(w), error_by_rows(w, x, y, kInputs), 1e-4);
        for (size_t i = 0; i < w.size(); ++i) {
            for (const float step : {0.05F, -0.05F}) {
                auto moved = w;
                moved[i] += step;
                EXPECT_GT(cost(moved), cost(w)) << "ridge " << ridge << ", weight " << i;
            }
        }
    }
    EXPECT_LE(relative_difference(squares.solve(1e9, prior), prior), 1e-6);
}

TEST(LeastSquares, AddingInPartsIsAddingAll) {
    constexpr int64_t kInputs = 9, kOutputs = 4, kRows = 700;  // more rows than one float32 sum takes
    const auto x = random_values(kInputs * kRows, 1), y = random_values(kOutputs * kRows, 2),
               prior = random_values(kInputs * kOutputs, 3);
    const LeastSquares whole = rows_of(kInputs, kOutputs, x, y);
    for (const int64_t part : {int64_t{1}, int64_t{13}, int64_t{256}, int64_t{699}}) {
        LeastSquares parts(kInputs, kOutputs), second(kInputs, kOutputs);
        for (int64_t first = 0; first < kRows; first += part) {
            LeastSquares& half = first < kRows / 2 ? parts : second;
            half.add(std::min(part, kRows - first), x.data() + first * kInputs, y.data() + first * kOutputs);
        }
        parts.add(second);
        EXPECT_EQ(parts.rows(), kRows);
        EXPECT_LE(relative_difference(parts.solve(0.01, prior), whole.solve(0.01, prior)), 1e-5) << part;
        EXPECT_NEAR(parts.error(prior), whole.error(prior), 1e-5 * whole.error(prior)) << part;
    }
}

// With more inputs than rows only a ridge makes the solution unique, and it stays near the prior.
TEST(LeastSquares, TooFewRowsNeedARidge) {
    constexpr int64_t kInputs = 20, kOutputs = 3, kRows = 8;
    const auto x = random_values(kInputs * kRows, 1), prior = random_values(kInputs * kOutputs, 2),
               y = with_noise(applied(prior, x, kInputs), 0.5F, 3);
    const LeastSquares squares = rows_of(kInputs, kOutputs, x, y);
    expect_error(ErrorCode::input, "raise it", [&] { squares.solve(-1e-3, prior); });
    const LeastSquares nothing = rows_of(2, 1, {0, 0}, {1});
    expect_error(ErrorCode::input, "2 inputs from 1 rows",
                 [&] { nothing.solve(0.1, std::vector<float>(2)); });
    const auto w = squares.solve(1e-4, prior);
    EXPECT_LT(squares.error(w), 1e-2 * squares.error(prior));
    EXPECT_LT(relative_difference(w, prior), 1);
}

TEST(LeastSquares, NotFiniteIsRefused) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        for (const size_t at : {size_t{0}, size_t{7}}) {
            std::vector<float> x = random_values(8, 1), y = random_values(8, 2);
            x[at] = bad;
            expect_error(ErrorCode::input, "not finite", [&] { rows_of(2, 2, x, y); });
            x[at] = 1;
            y[at] = bad;
            expect_error(ErrorCode::input, "activations", [&] { rows_of(2, 2, x, y); });
        }
    }
    // Products that overflow float32.
    expect_error(ErrorCode::input, "not finite", [] { rows_of(1, 1, {1e25F}, {1}); });
    expect_error(ErrorCode::input, "not finite", [] { rows_of(1, 1, {1e15F}, {1e30F}); });
}

// ---- low rank ----

// Alternates exact minimization over U and V from many starts.
double best_error_of_rank(const LeastSquares& squares, const std::vector<float>& x,
                          const std::vector<float>& y, int64_t rank) {
    const int64_t inputs = squares.inputs(), outputs = squares.outputs(),
                  rows = static_cast<int64_t>(x.size()) / inputs;
    double best = std::numeric_limits<double>::infinity();
    for (unsigned start = 1; start <= 6; ++start) {
        auto v = random_values(rank * inputs, start);
        std::vector<float> w(static_cast<size_t>(inputs * outputs));
        for (int round = 0; round < 200; ++round) {
            // U from z = V x, then W = U V; the next V is U^T times the unconstrained solution.
            const auto z = applied(v, x, inputs);
            LeastSquares inner(rank, outputs);
            inner.add(rows, z.data(), y.data());
            const auto u = inner.solve(1e-9, std::vector<float>(static_cast<size_t>(rank * outputs)));
            for (int64_t o = 0; o < outputs; ++o) {
                for (int64_t i = 0; i < inputs; ++i) {
                    double sum = 0;
                    for (int64_t r = 0; r < rank; ++r)
                        sum += static_cast<double>(u[static_cast<size_t>(o * rank + r)]) *
                               v[static_cast<size_t>(r * inputs + i)];
                    w[static_cast<size_t>(o * inputs + i)] = static_cast<float>(sum);
                }
            }
            const auto full = squares.solve(0, std::vector<float>(w.size()));
            for (int64_t r = 0; r < rank; ++r) {
                for (int64_t i = 0; i < inputs; ++i) {
                    double sum = 0;
                    for (int64_t o = 0; o < outputs; ++o)
                        sum += static_cast<double>(u[static_cast<size_t>(o * rank + r)]) *
                               full[static_cast<size_t>(o * inputs + i)];
                    v[static_cast<size_t>(r * inputs + i)] = static_cast<float>(sum);
                }
            }
        }
        best = std::min(best, squares.error(w));
    }
    return best;
}

TEST(ReducedRank, IsTheBestMapOfItsRank) {
    constexpr int64_t kInputs = 6, kOutputs = 5, kRows = 80;
    // Inputs of different sizes, so that the leading directions of W are not those of its outputs.
    auto x = random_values(kInputs * kRows, 1);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::pow(3.0F, static_cast<float>(i % kInputs) - 3);
    const auto y = random_values(kOutputs * kRows, 2);
    const LeastSquares squares = rows_of(kInputs, kOutputs, x, y);
    const auto w = squares.solve(0, std::vector<float>(kInputs * kOutputs));
    for (const int64_t rank : {1, 2, 4}) {
        const auto map = reduce_rank(squares.gram(), kInputs, w, rank);
        ASSERT_EQ(map.u.size(), static_cast<size_t>(kOutputs * rank));
        ASSERT_EQ(map.v.size(), static_cast<size_t>(rank * kInputs));
        const double got = squares.error(product_of(map, kInputs)),
                     best = best_error_of_rank(squares, x, y, rank);
        EXPECT_NEAR(got, best, 1e-4 * best) << rank;
        EXPECT_GT(got, squares.error(w)) << rank;
    }
    EXPECT_LE(relative_difference(product_of(reduce_rank(squares.gram(), kInputs, w, kOutputs), kInputs), w),
              1e-5);
    // The rank is clipped to the number of outputs.
    EXPECT_EQ(reduce_rank(squares.gram(), kInputs, w, 50).u.size(), static_cast<size_t>(kOutputs * kOutputs));
}

// ---- the ridge ----

TEST(SolveWithHeldOut, TakesTheRidgeThatIsBestThere) {
    constexpr int64_t kInputs = 30, kOutputs = 4;
    const auto truth = random_values(kInputs * kOutputs, 1), prior = with_noise(truth, 0.4F, 2);
    const auto rows = [&](int64_t count, unsigned seed) {
        const auto x = random_values(kInputs * count, seed);
        return rows_of(kInputs, kOutputs, x, with_noise(applied(truth, x, kInputs), 3.0F, seed + 100));
    };
    // With few rows and much noise a ridge beats the unconstrained solution.
    const LeastSquares fit = rows(40, 3), held_out = rows(400, 4);
    const Ridged got = solve_with_held_out(fit, held_out, prior);
    EXPECT_GT(got.ridge, 0);
    EXPECT_TRUE(std::isfinite(got.ridge));
    EXPECT_NEAR(got.error_before, held_out.error(prior), 1e-12 * got.error_before);
    EXPECT_LT(got.error_after, got.error_before);
    EXPECT_LT(got.error_after, held_out.error(fit.solve(0, prior)));
    EXPECT_DOUBLE_EQ(got.error_after, held_out.error(fit.solve(got.ridge, prior)));
    for (const double factor : {0.1, 10.0})
        EXPECT_GE(held_out.error(fit.solve(got.ridge * factor, prior)), got.error_after) << factor;
    // The map itself is solved with the rows of both sets.
    LeastSquares all = fit;
    all.add(held_out);
    EXPECT_LE(relative_difference(got.weights, all.solve(got.ridge, prior)), 1e-6);
    // The result does not depend on where the search starts.
    for (const double start : {1e-3, 1.0})
        EXPECT_NEAR(std::log10(solve_with_held_out(fit, held_out, prior, start).ridge), std::log10(got.ridge),
                    0.5 + 1e-9)
            << start;
}

TEST(SolveWithHeldOut, CleanRowsNeedLittleRidge) {
    constexpr int64_t kInputs = 10, kOutputs = 3;
    const auto truth = random_values(kInputs * kOutputs, 1);
    const auto rows = [&](unsigned seed) {
        const auto x = random_values(kInputs * 300, seed);
        return rows_of(kInputs, kOutputs, x, applied(truth, x, kInputs));
    };
    const Ridged got = solve_with_held_out(rows(2), rows(3), std::vector<float>(truth.size()));
    EXPECT_LT(got.ridge, 1e-3);
    EXPECT_LT(got.error_after, 1e-4 * got.error_before);
    EXPECT_LE(relative_difference(got.weights, truth), 1e-3);
}

// Dependent inputs have no solution at small ridges; the search stays where one exists.
TEST(SolveWithHeldOut, DependentInputs) {
    constexpr int64_t kInputs = 24, kOutputs = 2;
    const auto truth = random_values(kInputs * kOutputs, 1);
    const auto mix = random_values(3 * kInputs, 4);
    const auto rows = [&](unsigned seed) {
        auto x = random_values(kInputs * 200, seed);
        for (size_t i = 0; i < x.size(); ++i) {  // sums of the first three
            const size_t first = i - i % kInputs, column = i % kInputs;
            if (column < 3) continue;
            x[i] = 0;
            for (size_t k = 0; k < 3; ++k) x[i] += mix[3 * column + k] * x[first + k];
        }
        return rows_of(kInputs, kOutputs, x, applied(truth, x, kInputs));
    };
    const LeastSquares fit = rows(2), held_out = rows(3);
    const std::vector<float> zeros(truth.size());
    for (const double start : {1e-2, 1e-10}) {
        const Ridged got = solve_with_held_out(fit, held_out, zeros, start);
        EXPECT_TRUE(std::isfinite(got.ridge));
        EXPECT_LT(got.error_after, 1e-3 * got.error_before);
        for (const float value : got.weights) ASSERT_TRUE(std::isfinite(value));
    }
    expect_error(ErrorCode::input, "no stable solution", [&] { fit.solve(1e-10, zeros); });
}

TEST(SolveWithHeldOut, ThePriorStaysWhereNothingHelps) {
    constexpr int64_t kInputs = 12, kOutputs = 3;
    const auto prior = random_values(kInputs * kOutputs, 1);
    // Held-out rows follow the prior, the rows to fit are noise.
    const auto x = random_values(kInputs * 50, 2), other = random_values(kInputs * 50, 3);
    const LeastSquares fit = rows_of(kInputs, kOutputs, x, random_values(kOutputs * 50, 4)),
                       held_out = rows_of(kInputs, kOutputs, other, applied(prior, other, kInputs));
    const Ridged got = solve_with_held_out(fit, held_out, prior);
    EXPECT_EQ(got.ridge, std::numeric_limits<double>::infinity());
    EXPECT_EQ(got.weights, prior);
    EXPECT_EQ(got.error_before, got.error_after);
    // Nor when all inputs are zero.
    const LeastSquares nothing = rows_of(1, 1, {0, 0}, {1, 2});
    EXPECT_EQ(solve_with_held_out(nothing, nothing, std::vector<float>{3}).weights, std::vector<float>{3});
}

TEST(LeastSquares, SomeInputsAlone) {
    const std::vector<float> x = random_values(40L * 5, 1), y = random_values(40L * 2, 2);
    std::vector<float> some;
    for (size_t row = 0; row < 40; ++row) {
        for (const size_t i : {1, 2, 4}) some.push_back(x[row * 5 + i]);
    }
    const std::vector<int64_t> inputs = {1, 2, 4};
    const LeastSquares picked = rows_of(5, 2, x, y).with_inputs(inputs), expected = rows_of(3, 2, some, y);
    for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(picked.gram()[i], expected.gram()[i], 1e-4);
    const std::vector<float> prior = random_values(6, 3);
    EXPECT_LE(relative_difference(picked.solve(0.1, prior), expected.solve(0.1, prior)), 1e-6);
    EXPECT_NEAR(picked.error(prior), expected.error(prior), 1e-5);
}

}  // namespace
}  // namespace refold
