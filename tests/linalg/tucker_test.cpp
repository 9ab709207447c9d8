#include "linalg/tucker.h"

#include <numeric>

#include "linalg/compare.h"

namespace refold {
namespace {

using Dims = std::array<int64_t, 4>;

int64_t elements(const Dims& dims) { return dims[0] * dims[1] * dims[2] * dims[3]; }

// Converts from row major.
std::vector<float> first_index_contiguous(const std::vector<float>& x, const Dims& dims) {
    std::vector<float> out(x.size());
    size_t from = 0;
    for (int64_t a = 0; a < dims[0]; ++a) {
        for (int64_t b = 0; b < dims[1]; ++b) {
            for (int64_t c = 0; c < dims[2]; ++c) {
                for (int64_t d = 0; d < dims[3]; ++d) {
                    out[a + dims[0] * (b + dims[1] * (c + dims[2] * d))] = x[from++];
                }
            }
        }
    }
    return out;
}

// A few strong directions over noise in every mode, like weights.
std::vector<float> structured(const Dims& dims, unsigned seed, double noise) {
    const Dims core = {std::max<int64_t>(1, dims[0] / 8), std::max<int64_t>(1, dims[1] / 4), dims[2],
                       dims[3]};
    TuckerResult model;
    model.ranks = {core[0], core[1], core[2]};
    model.core = random_values(elements(core), seed);
    for (int64_t i = 0; i < elements(core); ++i) {
        model.core[i] /= 1 + static_cast<float>(i % core[0]);
    }
    for (unsigned m = 0; m < 3; ++m) model.factors[m] = random_values(dims[m] * core[m], seed + m + 1);
    std::vector<float> out = reconstruct(model, dims);
    const double scale = noise * norm(out) / std::sqrt(static_cast<double>(out.size()));
    const std::vector<float> added = random_values(elements(dims), seed + 9);
    for (size_t i = 0; i < out.size(); ++i) out[i] += static_cast<float>(scale * added[i]);
    return out;
}

TuckerResult decompose(const std::vector<float>& tensor, const Dims& dims, std::array<int64_t, 3> ranks,
                       int max_sweeps = 100, double tolerance = 1e-4) {
    TuckerOptions options;
    options.ranks = ranks;
    options.max_sweeps = max_sweeps;
    options.tolerance = tolerance;
    options.hosvd_error = true;
    return partial_tucker(tensor, dims, options);
}

void expect_orthonormal(const TuckerResult& result, const Dims& dims) {
    for (size_t m = 0; m < 3; ++m) {
        ASSERT_EQ(result.factors[m].size(), static_cast<size_t>(result.ranks[m] * dims[m]));
        EXPECT_LT(not_orthonormal(result.factors[m], result.ranks[m], dims[m], 1), 1e-5) << "mode " << m + 1;
    }
}

TEST(Tucker, MatchesTensorly) {
    const MethodsFixture fixture("tensorllm_small");
    const auto& numbers = fixture.numbers;
    const Dims dims = numbers.at("shape");
    const std::vector<float> tensor = first_index_contiguous(fixture.tensor("tensor"), dims);
    TuckerOptions options;
    options.ranks = numbers.at("ranks");
    options.hosvd_error = true;
    std::vector<double> errors;
    options.on_sweep = [&](int sweep, double error) {
        EXPECT_EQ(sweep, static_cast<int>(errors.size()) + 1);
        errors.push_back(error);
    };
    const TuckerResult result = partial_tucker(tensor, dims, options);
    const std::vector<double> expected = numbers.at("rec_errors");
    ASSERT_EQ(errors.size(), expected.size());
    for (size_t i = 0; i < errors.size(); ++i) EXPECT_NEAR(errors[i], expected[i], 1e-5) << "sweep " << i + 1;
    EXPECT_EQ(result.sweeps, static_cast<int>(expected.size()));
    EXPECT_NEAR(result.hosvd_error, numbers.at("hosvd_rel_error").get<double>(), 1e-5);
    EXPECT_NEAR(result.relative_error, numbers.at("rel_error").get<double>(), 1e-5);
    expect_orthonormal(result, dims);

    const std::vector<float> rebuilt = reconstruct(result, dims);
    EXPECT_NEAR(relative_difference(rebuilt, tensor), result.relative_error, 1e-5);
    const std::vector<float> theirs = first_index_contiguous(fixture.tensor("reconstruction"), dims);
    float largest = 0, difference = 0;
    for (size_t i = 0; i < theirs.size(); ++i) {
        largest = std::max(largest, std::abs(theirs[i]));
        difference = std::max(difference, std::abs(theirs[i] - rebuilt[i]));
    }
    EXPECT_LT(difference, 1e-3 * largest);

    const TuckerResult all = decompose(tensor, dims, options.ranks, numbers.at("tol0_iterations"), 0);
    EXPECT_EQ(all.sweeps, numbers.at("tol0_iterations").get<int>());
    EXPECT_NEAR(all.relative_error, numbers.at("tol0_rel_error").get<double>(), 1e-4);
}

// At a scale of 2^60 float32 squares would overflow, so the reference runs in float64 with all eigenvectors.
TEST(Tucker, RefinementKeepsToTheExactIteration) {
    struct Case {
        Dims dims;
        std::array<int64_t, 3> ranks;
        double noise;
    };
    for (const Case& c : {Case{{320, 24, 4, 6}, {60, 10, 3}, 0.5}, Case{{300, 16, 4, 8}, {120, 8, 4}, 2.0},
                          Case{{1030, 8, 2, 40}, {100, 4, 2}, 0.3}, Case{{12, 280, 3, 9}, {7, 60, 2}, 0.5}}) {
        std::vector<float> tensor = structured(c.dims, 11, c.noise);
        std::vector<double> errors;
        TuckerOptions options;
        options.ranks = c.ranks;
        options.max_sweeps = 5;
        options.tolerance = 0;
        options.hosvd_error = true;
        options.on_sweep = [&](int, double error) { errors.push_back(error); };
        const TuckerResult fast = partial_tucker(tensor, c.dims, options);
        expect_orthonormal(fast, c.dims);
        EXPECT_NEAR(relative_difference(reconstruct(fast, c.dims), tensor), fast.relative_error, 3e-6);
        for (float& x : tensor) x *= 0x1p60F;
        const std::vector<double> quick = std::exchange(errors, {});
        const TuckerResult exact = partial_tucker(tensor, c.dims, options);
        EXPECT_NEAR(fast.hosvd_error, exact.hosvd_error, 5e-5 * exact.hosvd_error);
        for (size_t i = 0; i < errors.size(); ++i) {
            EXPECT_NEAR(quick[i], errors[i], 2e-5 * errors[i]) << c.dims[0] << ", sweep " << i + 1;
        }
    }
}

// In a float32 Gram matrix, rounding errors of the strong directions would hide the weak ones.
TEST(Tucker, WeakDirectionsSurviveStrongOnes) {
    const Dims dims = {400, 16, 4, 8};
    std::vector<float> tensor = structured(dims, 5, 0.05);
    const double weak = norm(tensor);
    std::vector<float> strong(tensor.size());
    const std::vector<float> one = random_values(dims[0], 6),
                             other = random_values(elements(dims) / dims[0], 7);
    for (int64_t i = 0; i < elements(dims); ++i) strong[i] = one[i % dims[0]] * other[i / dims[0]];
    const auto scale = static_cast<float>(20 * weak / norm(strong));
    for (size_t i = 0; i < tensor.size(); ++i) tensor[i] += scale * strong[i];
    const TuckerResult fast = decompose(tensor, dims, {40, 12, 3}, 3, 0);
    for (float& x : tensor) x *= 0x1p60F;
    const TuckerResult exact = decompose(tensor, dims, {40, 12, 3}, 3, 0);
    std::vector<float> theirs = reconstruct(exact, dims);
    for (float& x : theirs) x *= 0x1p-60F;
    const double difference = relative_difference(reconstruct(fast, dims), theirs) * norm(theirs);
    EXPECT_LT(difference, 1e-2 * weak) << difference / weak;
}

TEST(Tucker, TheFitNeverFalls) {
    std::mt19937 generator(2);
    for (unsigned i = 0; i < 30; ++i) {
        const Dims dims = {
            1 + static_cast<int64_t>(generator() % 40), 1 + static_cast<int64_t>(generator() % 20),
            1 + static_cast<int64_t>(generator() % 5), 1 + static_cast<int64_t>(generator() % 6)};
        const std::vector<float> tensor = random_values(elements(dims), i);
        TuckerOptions options;
        for (size_t m = 0; m < 3; ++m)
            options.ranks[m] = 1 + static_cast<int64_t>(generator()) % (dims[m] + 1);
        options.max_sweeps = 8;
        options.tolerance = 0;
        options.hosvd_error = true;
        double last = 2;
        options.on_sweep = [&](int, double error) {
            EXPECT_LE(error, last + 1e-6);
            last = error;
        };
        const TuckerResult result = partial_tucker(tensor, dims, options);
        EXPECT_LE(result.relative_error, result.hosvd_error + 1e-6);
        // Without it the first mode has no start, which nothing else depends on.
        options.hosvd_error = false;
        options.on_sweep = {};
        EXPECT_NEAR(partial_tucker(tensor, dims, options).relative_error, result.relative_error, 1e-6);
        EXPECT_NEAR(relative_difference(reconstruct(result, dims), tensor), result.relative_error, 3e-6);
        expect_orthonormal(result, dims);
        for (size_t m = 0; m < 3; ++m) EXPECT_EQ(result.ranks[m], std::min(options.ranks[m], dims[m]));
    }
}

TEST(Tucker, FullRanksAreBitForBit) {
    for (const Dims& dims : {Dims{20, 7, 4, 3}, Dims{300, 3, 2, 2}, Dims{1, 1, 1, 1}}) {
        const std::vector<float> tensor = random_values(elements(dims), 3);
        const TuckerResult result = decompose(tensor, dims, {1000, dims[1], dims[2] + 1});
        EXPECT_EQ(result.core, tensor);
        EXPECT_EQ(reconstruct(result, dims), tensor);
        EXPECT_EQ(result.relative_error, 0);
        EXPECT_EQ(result.hosvd_error, 0);
        for (int64_t i = 0; i < dims[0] * dims[0]; ++i) {
            ASSERT_EQ(result.factors[0][i], i % (dims[0] + 1) == 0 ? 1 : 0);
        }
    }
}

// When only one mode is reduced, its factor holds the singular vectors and sweeps cannot improve it.
TEST(Tucker, OneModeIsAnSvd) {
    const Dims dims = {12, 10, 4, 5};
    const std::vector<float> tensor = random_values(elements(dims), 4);
    for (size_t mode = 0; mode < 3; ++mode) {
        std::array<int64_t, 3> ranks = {12, 10, 4};
        ranks[mode] = 2;
        const TuckerResult result = decompose(tensor, dims, ranks);
        EXPECT_EQ(result.sweeps, 3);
        EXPECT_NEAR(result.relative_error, result.hosvd_error, 1e-7);
        EXPECT_NEAR(relative_difference(reconstruct(result, dims), tensor), result.relative_error, 1e-6);
    }
}

TEST(Tucker, HandWorkedRankOne) {
    // (3, 4) x (1, 2, 2) x (0, 1) x (1, -2): norms 5, 3, 1 and a core of 15 and -30.
    const Dims dims = {2, 3, 2, 2};
    std::vector<float> tensor;
    for (const float d : {1.0F, -2.0F}) {
        for (const float c : {0.0F, 1.0F}) {
            for (const float b : {1.0F, 2.0F, 2.0F}) {
                for (const float a : {3.0F, 4.0F}) tensor.push_back(a * b * c * d);
            }
        }
    }
    const TuckerResult result = decompose(tensor, dims, {1, 1, 1});
    ASSERT_EQ(result.core.size(), 2U);
    EXPECT_NEAR(std::abs(result.core[0]), 15, 1e-5);
    EXPECT_NEAR(result.core[1] / result.core[0], -2, 1e-6);
    EXPECT_NEAR(std::abs(result.factors[0][0]), 0.6, 1e-6);
    EXPECT_NEAR(std::abs(result.factors[1][1]), 2.0 / 3, 1e-6);
    EXPECT_NEAR(std::abs(result.factors[2][0]), 0, 1e-6);
    EXPECT_LT(result.relative_error, 1e-6);
    EXPECT_LT(result.hosvd_error, 1e-6);
    EXPECT_LT(relative_difference(reconstruct(result, dims), tensor), 1e-6);
}

TEST(Tucker, SmallErrorsAreExact) {
    for (const Dims& dims : {Dims{40, 16, 4, 4}, Dims{400, 16, 4, 4}}) {
        for (const double noise : {0.0, 1e-4, 1e-2}) {
            const std::vector<float> tensor = structured(dims, 12, noise);
            const TuckerResult result = decompose(tensor, dims, {dims[0] / 8, 4, 4});
            const double error = relative_difference(reconstruct(result, dims), tensor);
            EXPECT_NEAR(result.relative_error, error, 1e-4 * error + 1e-7) << noise;
            EXPECT_LT(error, noise + 1e-6);
            EXPECT_GE(result.hosvd_error, result.relative_error - 1e-7);
        }
    }
}

TEST(Tucker, Zero) {
    const Dims dims = {5, 4, 2, 2};
    const std::vector<float> tensor(elements(dims));
    const TuckerResult result = decompose(tensor, dims, {2, 2, 1});
    EXPECT_EQ(result.relative_error, 0);
    EXPECT_EQ(reconstruct(result, dims), tensor);
    expect_orthonormal(result, dims);
}

TEST(Tucker, StopsByTheRule) {
    const Dims dims = {30, 12, 4, 4};
    const std::vector<float> tensor = random_values(elements(dims), 5);
    EXPECT_EQ(decompose(tensor, dims, {8, 4, 2}, 100, 1.0).sweeps, 3);
    EXPECT_EQ(decompose(tensor, dims, {8, 4, 2}, 2, 1.0).sweeps, 2);
    EXPECT_EQ(decompose(tensor, dims, {8, 4, 2}, 7, 0).sweeps, 7);
}

TEST(Tucker, RejectsWhatIsNoTensor) {
    const Dims dims = {4, 3, 2, 2};
    std::vector<float> tensor = random_values(elements(dims), 6);
    expect_error(ErrorCode::usage, "rank", [&] { decompose(tensor, dims, {2, 0, 1}); });
    expect_error(ErrorCode::usage, "sweeps", [&] { decompose(tensor, dims, {2, 1, 1}, 0); });
    expect_error(ErrorCode::input, "48 elements", [&] { decompose(tensor, {4, 3, 2, 3}, {2, 1, 1}); });
    expect_error(ErrorCode::input, "dimension", [&] { decompose(tensor, {4, 3, 4, 0}, {2, 1, 1}); });
    tensor[7] = std::nanf("");
    expect_error(ErrorCode::input, "element 7", [&] { decompose(tensor, dims, {4, 3, 2}); });
    TuckerResult result;
    result.ranks = {2, 2, 2};
    expect_error(ErrorCode::input, "core", [&] { reconstruct(result, dims); });
}

}  // namespace
}  // namespace refold
