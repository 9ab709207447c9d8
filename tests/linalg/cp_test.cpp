#include "linalg/compare.h"
#include "linalg/tucker.h"

namespace refold {
namespace {

using Dims = std::array<int64_t, 3>;

std::vector<float> random_terms(const Dims& dims, int64_t rank, unsigned seed) {
    CpResult model;
    model.rank = rank;
    for (int64_t r = 0; r < rank; ++r) model.weights.push_back(static_cast<double>(rank - r));
    for (unsigned m = 0; m < 3; ++m) model.factors[m] = random_values(dims[m] * rank, seed + m);
    return reconstruct(model, dims);
}

CpResult decompose(const std::vector<float>& tensor, const Dims& dims, int64_t rank, int max_sweeps = 100,
                   double tolerance = 1e-4) {
    CpOptions options;
    options.rank = rank;
    options.max_sweeps = max_sweeps;
    options.tolerance = tolerance;
    return cp_decomposition(tensor, dims, options);
}

void expect_sound(const CpResult& result, const std::vector<float>& tensor, const Dims& dims) {
    EXPECT_NEAR(relative_difference(reconstruct(result, dims), tensor), result.relative_error, 1e-5);
    for (size_t m = 0; m < 3; ++m) {
        for (int64_t r = 0; r < result.rank; ++r) {
            EXPECT_NEAR(norm(std::span(result.factors[m]).subspan(r * dims[m], dims[m])), 1, 1e-5);
        }
    }
    for (const double weight : result.weights) EXPECT_TRUE(std::isfinite(weight) && weight >= 0);
}

TEST(Cp, HandWorkedRankOne) {
    const Dims dims = {2, 3, 2};
    std::vector<float> tensor;
    for (const float c : {0.0F, -2.0F}) {
        for (const float b : {1.0F, 2.0F, 2.0F}) {
            for (const float a : {3.0F, 4.0F}) tensor.push_back(a * b * c);
        }
    }
    const CpResult result = decompose(tensor, dims, 1);
    EXPECT_NEAR(result.weights[0], 30, 1e-4);
    EXPECT_NEAR(std::abs(result.factors[0][1]), 0.8, 1e-6);
    EXPECT_NEAR(std::abs(result.factors[2][1]), 1, 1e-6);
    EXPECT_LT(result.relative_error, 1e-6);
    expect_sound(result, tensor, dims);
}

TEST(Cp, FindsTheTerms) {
    const Dims dims = {20, 15, 12};
    const std::vector<float> tensor = random_terms(dims, 4, 1);
    const CpResult result = decompose(tensor, dims, 4, 500, 0);
    EXPECT_LT(result.relative_error, 1e-3);
    expect_sound(result, tensor, dims);
}

// CP terms need not be orthogonal, so more terms than a dimension has can help.
TEST(Cp, RankBeyondADimension) {
    const Dims dims = {12, 10, 3};
    const std::vector<float> tensor = random_values(360, 2);
    double last = 1;
    for (const int64_t rank : {1, 3, 8, 20}) {
        const CpResult result = decompose(tensor, dims, rank, 60, 0);
        EXPECT_LT(result.relative_error, last) << rank;
        last = result.relative_error;
        expect_sound(result, tensor, dims);
    }
    EXPECT_LT(last, 0.25);
    EXPECT_LT(decompose(tensor, dims, 40, 100, 0).relative_error, 1e-3);
}

// With more terms than the tensor has, the normal equations are singular.
TEST(Cp, TooManyTerms) {
    const Dims dims = {9, 8, 7};
    const std::vector<float> tensor = random_terms(dims, 2, 5);
    const CpResult result = decompose(tensor, dims, 6, 200, 0);
    EXPECT_LT(result.relative_error, 1e-3);
    expect_sound(result, tensor, dims);
}

TEST(Cp, MatrixIsAnSvd) {
    // With one slice, CP of rank r is the best matrix of rank r: diag(3, 2, 1) at 2 leaves 1 of sqrt(14).
    const std::vector<float> tensor = {3, 0, 0, 0, 2, 0, 0, 0, 1};
    EXPECT_NEAR(decompose(tensor, {3, 3, 1}, 2).relative_error, 1 / std::sqrt(14.0), 1e-5);
}

TEST(Cp, SeedsAndStops) {
    const Dims dims = {6, 5, 3};
    const std::vector<float> tensor = random_values(90, 3);
    EXPECT_EQ(decompose(tensor, dims, 5).factors, decompose(tensor, dims, 5).factors);
    CpOptions options;
    options.rank = 5;
    options.seed = 1;
    EXPECT_NE(cp_decomposition(tensor, dims, options).factors, decompose(tensor, dims, 5).factors);
    EXPECT_EQ(decompose(tensor, dims, 5, 100, 1.0).sweeps, 3);
    EXPECT_EQ(decompose(tensor, dims, 5, 9, 0).sweeps, 9);
}

TEST(Cp, ZeroAndErrors) {
    const Dims dims = {4, 3, 2};
    std::vector<float> tensor(24);
    const CpResult result = decompose(tensor, dims, 2);
    EXPECT_EQ(result.relative_error, 0);
    EXPECT_EQ(reconstruct(result, dims), tensor);
    expect_error(ErrorCode::usage, "rank", [&] { decompose(tensor, dims, 0); });
    expect_error(ErrorCode::input, "expected 48", [&] { decompose(tensor, {4, 3, 4}, 1); });
    tensor[3] = std::nanf("");
    expect_error(ErrorCode::input, "not finite", [&] { decompose(tensor, dims, 1); });
}

}  // namespace
}  // namespace refold
