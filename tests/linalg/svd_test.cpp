#include "linalg/svd.h"

#include <limits>

#include "linalg/compare.h"

namespace refold {
namespace {

std::vector<float> product(const Svd& svd, int64_t rows, int64_t cols) {
    std::vector<float> out(rows * cols);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
            double sum = 0;
            for (int64_t k = 0; k < svd.rank; ++k) {
                sum += svd.u[i * svd.rank + k] * svd.s[k] * svd.v[k * cols + j];
            }
            out[i * cols + j] = static_cast<float>(sum);
        }
    }
    return out;
}

void expect_orthonormal(const Svd& svd, int64_t cols) {
    EXPECT_LT(not_orthonormal(svd.u, svd.rank, 1, svd.rank), 3e-6);
    EXPECT_LT(not_orthonormal(svd.v, svd.rank, cols, 1), 3e-6);
    EXPECT_TRUE(std::ranges::is_sorted(svd.s, std::greater<>()));
}

// U diag(s) V of random orthonormal U and V.
std::vector<float> with_spectrum(const std::vector<double>& s, int64_t rows, int64_t cols, unsigned seed) {
    const int64_t n = std::min(rows, cols);
    Svd svd = truncated_svd(random_values(rows * cols, seed), rows, cols, n);
    svd.s = s;
    return product(svd, rows, cols);
}

TEST(Svd, MatchesNumpy) {
    const MethodsFixture fixture("laser");
    const std::vector<float> matrix = fixture.tensor("matrix");
    const std::vector<float> expected = fixture.tensor("singular_values");
    const std::vector<double> values = singular_values(matrix, 160, 64);
    ASSERT_EQ(values.size(), 64U);
    for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(values[i], expected[i], 1e-6 * expected[0]) << i;
    for (const auto& number : fixture.numbers.at("ranks")) {
        const int64_t rank = number.at("k");
        const Svd svd = truncated_svd(matrix, 160, 64, rank);
        EXPECT_EQ(svd.rank, rank);
        EXPECT_NEAR(svd.relative_error, number.at("rel_error").get<double>(), 1e-5);
        const std::vector<float> best = fixture.tensor("rank" + std::to_string(rank));
        EXPECT_LT(relative_difference(product(svd, 160, 64), best), 1e-6);
        expect_orthonormal(svd, 64);
    }
}

TEST(Svd, RandomisedIsAsGoodAsSvdLowrank) {
    const MethodsFixture fixture("laser");
    const std::vector<float> matrix = fixture.tensor("matrix");
    for (const auto& number : fixture.numbers.at("ranks")) {
        const int64_t rank = number.at("k");
        const double exact = number.at("rel_error"), lowrank = number.at("svd_lowrank_niter2_rel_error");
        double mean = 0;
        for (uint64_t seed = 0; seed < 10; ++seed) {
            const Svd svd = randomized_svd(matrix, 160, 64, rank, 2, seed);
            EXPECT_GE(svd.relative_error, exact - 1e-6);
            EXPECT_NEAR(svd.relative_error, relative_difference(product(svd, 160, 64), matrix), 1e-5);
            expect_orthonormal(svd, 64);
            mean += svd.relative_error / 10;
        }
        EXPECT_LT(mean, 1.03 * lowrank) << "rank " << rank;
        EXPECT_NEAR(randomized_svd(matrix, 160, 64, rank, 40, 1).relative_error, exact, 2e-3);
    }
    EXPECT_EQ(randomized_svd(matrix, 160, 64, 8, 2, 5).u, randomized_svd(matrix, 160, 64, 8, 2, 5).u);
    EXPECT_NE(randomized_svd(matrix, 160, 64, 8, 2, 5).u, randomized_svd(matrix, 160, 64, 8, 2, 6).u);
}

TEST(Svd, HandWorked) {
    // (3, 4)' (1, 2, 2) = 5 (0.6, 0.8)' 3 (1, 2, 2) / 3.
    const std::vector<float> matrix = {3, 6, 6, 4, 8, 8};
    const Svd svd = truncated_svd(matrix, 2, 3, 1);
    EXPECT_NEAR(svd.s[0], 15, 1e-9);
    EXPECT_NEAR(std::abs(svd.u[0]), 0.6, 1e-6);
    EXPECT_NEAR(std::abs(svd.v[1]), 2.0 / 3, 1e-6);
    EXPECT_GT(svd.u[0] * svd.v[0], 0);
    EXPECT_LT(svd.relative_error, 1e-6);
    // diag(3, 4): rank 1 leaves 3 of 5.
    const std::vector<float> diagonal = {3, 0, 0, 4};
    EXPECT_NEAR(truncated_svd(diagonal, 2, 2, 1).relative_error, 0.6, 1e-12);
}

TEST(Svd, AnyShapeAndRank) {
    std::mt19937 generator(1);
    for (unsigned i = 0; i < 40; ++i) {
        const int64_t rows = 1 + generator() % 60, cols = 1 + generator() % 60, rank = 1 + generator() % 70;
        const std::vector<float> matrix = random_values(rows * cols, i);
        const Svd svd = truncated_svd(matrix, rows, cols, rank);
        ASSERT_EQ(svd.rank, std::min({rows, cols, rank})) << rows << " x " << cols;
        expect_orthonormal(svd, cols);
        const std::vector<float> approximation = product(svd, rows, cols);
        EXPECT_NEAR(svd.relative_error, relative_difference(approximation, matrix), 1e-6);
        if (svd.rank == std::min(rows, cols)) {
            EXPECT_LT(relative_difference(approximation, matrix), 5e-7);
        }
    }
}

// More than one panel, and far from square either way.
TEST(Svd, TallAndWide) {
    const std::vector<float> matrix = random_values(70000 * 40, 3);
    const Svd tall = truncated_svd(matrix, 70000, 40, 40);
    EXPECT_LT(tall.relative_error, 5e-7);
    EXPECT_GT(tall.relative_error, 0);
    expect_orthonormal(tall, 40);
    std::vector<float> transposed(matrix.size());
    for (int64_t i = 0; i < 70000; ++i) {
        for (int64_t j = 0; j < 40; ++j) transposed[j * 70000 + i] = matrix[i * 40 + j];
    }
    const Svd wide = truncated_svd(transposed, 40, 70000, 40);
    expect_orthonormal(wide, 70000);
    EXPECT_LT(wide.relative_error, 5e-7);
    for (size_t k = 0; k < 40; ++k) EXPECT_NEAR(wide.s[k], tall.s[k], 1e-9 * tall.s[0]);
}

TEST(Svd, RankDeficientStaysOrthonormal) {
    for (const auto& [rows, cols] : {std::pair{50, 30}, {30, 50}, {40, 40}}) {
        std::vector<double> s(30 + (rows == cols ? 10 : 0), 0.0);
        std::ranges::copy(std::vector<double>{1, 1, 0.5, 1e-3, 3e-5, 1e-6}, s.begin());
        const std::vector<float> matrix = with_spectrum(s, rows, cols, 4);
        const Svd svd = truncated_svd(matrix, rows, cols, rows);
        expect_orthonormal(svd, cols);
        EXPECT_LT(relative_difference(product(svd, rows, cols), matrix), 5e-7);
        for (size_t k = 0; k < s.size(); ++k) EXPECT_NEAR(svd.s[k], s[k], 3e-7) << k;
    }
    const std::vector<float> zero(12);
    const Svd svd = truncated_svd(zero, 4, 3, 3);
    EXPECT_EQ(svd.s, std::vector<double>(3, 0));
    EXPECT_EQ(svd.relative_error, 0);
    expect_orthonormal(svd, 3);
    EXPECT_EQ(randomized_svd(zero, 4, 3, 2, 2, 0).relative_error, 0);
}

TEST(Svd, RepeatedSingularValues) {
    std::vector<float> matrix(64 * 64);
    for (int64_t i = 0; i < 64; ++i) matrix[i * 64 + (i * 37 + 5) % 64] = i % 2 == 0 ? 2.0F : -2.0F;
    const Svd svd = truncated_svd(matrix, 64, 64, 16);
    for (const double s : svd.s) EXPECT_NEAR(s, 2, 1e-12);
    EXPECT_NEAR(svd.relative_error, std::sqrt(0.75), 1e-9);
    expect_orthonormal(svd, 64);
}

TEST(Svd, SmallErrorsAreExact) {
    const std::vector<double> s = {1, 0.5, 4e-5, 1e-5};
    const std::vector<float> matrix = with_spectrum(s, 40, 4, 5);
    const Svd svd = truncated_svd(matrix, 40, 4, 2);
    EXPECT_NEAR(svd.relative_error, std::hypot(4e-5, 1e-5) / norm(matrix), 2e-7);
}

TEST(Svd, ExtremeScales) {
    for (const float scale : {1e-18F, 1e18F}) {
        std::vector<float> matrix = random_values(20 * 12, 6);
        for (float& x : matrix) x *= scale;
        const Svd svd = truncated_svd(matrix, 20, 12, 12);
        EXPECT_LT(svd.relative_error, 5e-7);
        expect_orthonormal(svd, 12);
    }
}

TEST(Svd, EnergyRanks) {
    const std::vector<double> s = {3, 2, 1, 0};  // energies 9, 13, 14 of 14
    EXPECT_EQ(rank_for_energy(s, 0), 1);
    EXPECT_EQ(rank_for_energy(s, 9.0 / 14), 1);
    EXPECT_EQ(rank_for_energy(s, 0.65), 2);
    EXPECT_EQ(rank_for_energy(s, 13.0 / 14), 2);
    EXPECT_EQ(rank_for_energy(s, 0.95), 3);
    EXPECT_EQ(rank_for_energy(s, 1), 3);
    EXPECT_EQ(rank_for_energy(std::vector<double>{0, 0}, 1), 1);
    EXPECT_EQ(rank_for_energy(std::vector<double>{}, 0.5), 1);
    expect_error(ErrorCode::usage, "energy", [&] { rank_for_energy(s, 1.01); });
    expect_error(ErrorCode::usage, "energy", [&] { rank_for_energy(s, std::nan("")); });
}

TEST(Svd, RejectsWhatIsNoMatrix) {
    std::vector<float> matrix = random_values(12, 7);
    expect_error(ErrorCode::usage, "rank", [&] { truncated_svd(matrix, 3, 4, 0); });
    expect_error(ErrorCode::usage, "rank", [&] { randomized_svd(matrix, 3, 4, -1, 2, 0); });
    expect_error(ErrorCode::usage, "iterations", [&] { randomized_svd(matrix, 3, 4, 1, -1, 0); });
    expect_error(ErrorCode::input, "got 12 elements, expected 15", [&] { truncated_svd(matrix, 3, 5, 1); });
    expect_error(ErrorCode::input, "dimension", [&] { singular_values(matrix, 0, 4); });
    expect_error(ErrorCode::input, "too large", [&] { singular_values(matrix, 1LL << 40, 1LL << 40); });
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        matrix[5] = bad;
        expect_error(ErrorCode::input, "element 5", [&] { truncated_svd(matrix, 3, 4, 1); });
        expect_error(ErrorCode::input, "not finite", [&] { singular_values(matrix, 3, 4); });
        expect_error(ErrorCode::input, "not finite", [&] { randomized_svd(matrix, 3, 4, 1, 2, 0); });
    }
}

}  // namespace
}  // namespace refold
