#include "linalg/surgeon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/code_of.h"
#include "linalg/compare.h"
#include "linalg/least_squares.h"

namespace refold {
namespace {

constexpr double kRidge = 1e-9;  // as good as none

// Inputs of which neighbors resemble each other, a map of them, and its outputs.
struct Problem {
    int64_t inputs, outputs;
    std::vector<float> w;
    LeastSquares rows;

    Problem(int64_t in, int64_t out, unsigned seed)
        : inputs(in), outputs(out), w(random_values(inputs * outputs, seed)), rows(inputs, outputs) {
        constexpr int64_t kRows = 600;
        std::vector<float> x = random_values(kRows * inputs, seed + 1);
        for (size_t i = 1; i < x.size(); ++i) x[i] += 0.7F * x[i - 1];
        std::vector<float> y;
        for (int64_t row = 0; row < kRows; ++row) {
            for (int64_t o = 0; o < outputs; ++o) {
                double sum = 0;
                for (int64_t i = 0; i < inputs; ++i) sum += static_cast<double>(w[at(o, i)]) * x[at(row, i)];
                y.push_back(static_cast<float>(sum));
            }
        }
        rows.add(kRows, x.data(), y.data());
    }

    size_t at(int64_t row, int64_t input) const { return static_cast<size_t>(row * inputs + input); }

    SurgeonMap map(int64_t parts, int64_t width) const {
        return {rows.gram(), w, inputs, parts, width, kRidge};
    }

    // The best map from these inputs alone, and its summed squared error.
    std::pair<std::vector<float>, double> best(const std::vector<int64_t>& kept) const {
        const LeastSquares some = rows.with_inputs(kept);
        std::vector<float> solved =
            some.solve(1e-9, std::vector<float>(static_cast<size_t>(outputs) * kept.size()));
        const double error = some.error(solved) * static_cast<double>(rows.rows());
        return {std::move(solved), error};
    }

    std::vector<int64_t> without(const std::vector<int64_t>& parts, int64_t width) const {
        std::vector<int64_t> out;
        for (int64_t i = 0; i < inputs; ++i) {
            if (std::find(parts.begin(), parts.end(), i / width) == parts.end()) out.push_back(i);
        }
        return out;
    }
};

Removals removed(const SurgeonMap& map, int64_t count) {
    return remove_parts(map, std::span(&count, 1)).front();
}

void expect_exact(const Problem& problem, const Removals& out, int64_t width) {
    EXPECT_EQ(out.inputs, problem.without(out.parts, width));
    const auto [solved, error] = problem.best(out.inputs);
    EXPECT_LE(relative_difference(out.weights, solved), 1e-3);
    EXPECT_NEAR(out.errors.back() / error, 1, 1e-2);
    EXPECT_TRUE(std::is_sorted(out.errors.begin(), out.errors.end()));
}

TEST(Surgeon, RemovesThePartThatTheOthersMakeUpForBest) {
    for (const int64_t width : {1, 3}) {
        for (unsigned seed = 1; seed <= 4; ++seed) {
            const Problem problem(12, 5, seed);
            const int64_t parts = 12 / width;
            const Removals one = removed(problem.map(parts, width), 1);
            for (int64_t other = 0; other < parts; ++other)
                EXPECT_LE(one.errors[0] * 0.99, problem.best(problem.without({other}, width)).second)
                    << other;
            expect_exact(problem, one, width);
        }
    }
}

TEST(Surgeon, KeepsTheBestMapOfTheRest) {
    const Problem problem(24, 7, 3);
    for (const int64_t width : {1, 4}) {
        const Removals out = removed(problem.map(24 / width, width), 12 / width);
        EXPECT_EQ(static_cast<int64_t>(out.parts.size()), 12 / width);
        expect_exact(problem, out, width);
    }
    const std::vector<int64_t> counts = {3, 9};
    const auto steps = remove_parts(problem.map(24, 1), counts);
    for (const Removals& step : steps) expect_exact(problem, step, 1);
    EXPECT_EQ(steps[0].parts, std::vector<int64_t>(steps[1].parts.begin(), steps[1].parts.begin() + 3));
    // Several at once.
    const Problem large(270, 3, 5);
    const Removals out = removed(large.map(270, 1), 21);
    EXPECT_EQ(out.parts.size(), 21U);
    expect_exact(large, out, 1);
}

TEST(Surgeon, InputsAfterThePartsStay) {
    const Problem problem(9, 4, 2);
    const Removals out = removed(problem.map(4, 2), 4);
    EXPECT_EQ(out.inputs, std::vector<int64_t>{8});
    EXPECT_LE(relative_difference(out.weights, problem.best({8}).first), 1e-3);
}

TEST(Surgeon, SmallPartsByTheirShareOfTheOutputs) {
    // Root mean squares 1, 2, 3, 4; norms of columns 5, 1, 1, 0.5.
    std::vector<double> gram(16);
    for (size_t i = 0; i < 4; ++i) gram[i * 5] = static_cast<double>((i + 1) * (i + 1));
    const std::vector<float> w = {3, 1, 0, 0, 4, 0, 1, 0.5F};
    const std::vector<int64_t> counts = {1, 2};
    const auto steps = remove_small_parts({gram, w, 4, 3, 1}, counts);
    EXPECT_EQ(steps.front().parts, std::vector<int64_t>{1});
    EXPECT_EQ(steps.front().inputs, (std::vector<int64_t>{0, 2, 3}));
    const Removals& out = steps.back();
    EXPECT_EQ(out.parts, (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(out.errors, (std::vector<double>{4, 13}));
    EXPECT_EQ(out.inputs, (std::vector<int64_t>{0, 3}));
    EXPECT_EQ(out.weights, (std::vector<float>{3, 0, 4, 0.5F}));
}

TEST(Surgeon, RefusesAMatrixThatIsNotPositive) {
    const std::vector<double> gram = {1, 2, 2, 1};
    const std::vector<float> w = {1, 1};
    EXPECT_EQ(code_of([&] { removed({gram, w, 2, 2, 1, 0}, 1); }, "ridge"), ErrorCode::input);
}

}  // namespace
}  // namespace refold
