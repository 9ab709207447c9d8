#include "linalg/svd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/error.h"
#include "core/interrupt.h"
#include "linalg/blas.h"
#include "linalg/device.h"

namespace refold {
namespace {

using blas::Op;

constexpr int64_t kPanel = int64_t{1} << 21;  // elements converted at a time
constexpr double kNoise = 1e-7;               // singular values below this, relative, are rounding errors
constexpr double kBlurred = 1e-4;             // vectors of smaller ones need orthogonalizing again
constexpr double kDirectBelow = 1e-4;         // smaller errors are not computed as a difference of energies

void check_rank(int64_t rank) {
    if (rank < 1) fail(ErrorCode::usage, "linalg", "a rank of {}, expected at least 1", rank);
}

double check_matrix(std::span<const float> matrix, int64_t rows, int64_t cols) {
    const std::array dims = {rows, cols};
    blas::check_size(dims, matrix.size(), "the matrix");
    return blas::energy(matrix, "the matrix");
}

// The Gram matrix of the smaller side. Read as column major, the matrix is cols x rows.
std::vector<double> small_gram(std::span<const float> matrix, int64_t rows, int64_t cols) {
    return rows <= cols ? blas::gram<double>(matrix.data(), cols, rows, 1)
                        : blas::gram<double>(matrix.data(), 1, cols, rows);
}

std::vector<double> roots(std::span<const double> eigenvalues, int64_t count) {
    std::vector<double> out(count);
    std::transform(eigenvalues.begin(), eigenvalues.begin() + count, out.begin(),
                   [](double x) { return std::sqrt(std::max(0.0, x)); });
    return out;
}

// |matrix - U S V|, one panel of rows at a time.
double residual(std::span<const float> matrix, int64_t rows, int64_t cols, const Svd& svd) {
    const int64_t count = std::clamp<int64_t>(kPanel / cols, 1, rows);
    std::vector<double> right(svd.v.begin(), svd.v.end()), left(count * svd.rank), panel(count * cols);
    double sum = 0;
    for (int64_t row = 0; row < rows; row += count) {
        const int64_t n = std::min(count, rows - row);
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t k = 0; k < svd.rank; ++k) {
                left[i * svd.rank + k] = svd.u[(row + i) * svd.rank + k] * svd.s[k];
            }
        }
        // A row-major product is the column-major product of the transposed matrices.
        blas::multiply(Op::plain, Op::plain, {cols, n, svd.rank}, right.data(), left.data(), panel.data());
        for (int64_t i = 0; i < n * cols; ++i) {
            const double difference = panel[i] - matrix[row * cols + i];
            sum += difference * difference;
        }
    }
    return std::sqrt(sum);
}

double relative_error(std::span<const float> matrix, int64_t rows, int64_t cols, const Svd& svd,
                      double total) {
    if (total == 0) return 0;
    const double kept = std::inner_product(svd.s.begin(), svd.s.end(), svd.s.begin(), 0.0);
    const double error = std::sqrt(std::max(0.0, 1 - kept / total));
    return error < kDirectBelow ? residual(matrix, rows, cols, svd) / std::sqrt(total) : error;
}

// The `count` singular vectors of one side, of `size` elements: element i of vector k is at i * step + k *
// stride.
struct Vectors {
    float* data;
    int64_t size, count, step, stride;
    float& at(int64_t i, int64_t k) const { return data[i * step + k * stride]; }
};

// Orthonormalizes the vectors from `first` on, among each other and against the earlier ones. Vectors whose
// singular value is a rounding error are replaced by random ones.
void complete(const Vectors& x, int64_t first, std::span<const double> s) {
    const int64_t n = x.size, t = x.count - first;
    std::vector<double> tail(n * t);
    blas::Normal normal(0);
    for (int64_t k = 0; k < t; ++k) {
        const bool any = s[first + k] <= kNoise * s[0];
        for (int64_t i = 0; i < n; ++i) tail[k * n + i] = any ? normal() : x.at(i, first + k);
    }
    const int64_t block = std::clamp<int64_t>(kPanel / n, 1, std::max<int64_t>(1, first));
    std::vector<double> lead(n * block), inside(block * t);
    for (int pass = 0; pass < 2; ++pass) {
        for (int64_t begin = 0; begin < first; begin += block) {
            const int64_t count = std::min(block, first - begin);
            for (int64_t k = 0; k < count; ++k) {
                for (int64_t i = 0; i < n; ++i) lead[k * n + i] = x.at(i, begin + k);
            }
            blas::multiply(Op::transposed, Op::plain, {count, t, n}, lead.data(), tail.data(), inside.data());
            blas::multiply(Op::plain, Op::plain, {n, t, count}, lead.data(), inside.data(), tail.data(), 1,
                           -1);
        }
    }
    const std::vector<double> before = tail;
    blas::householder(n, t, tail.data());
    for (int64_t k = 0; k < t; ++k) {
        // QR may flip the sign of a vector.
        const double sign =
            std::inner_product(tail.begin() + k * n, tail.begin() + (k + 1) * n, before.begin() + k * n, 0.0);
        for (int64_t i = 0; i < n; ++i) {
            x.at(i, first + k) = static_cast<float>(sign < 0 ? -tail[k * n + i] : tail[k * n + i]);
        }
    }
}

// Computes the larger side's vectors from `near`, the eigenvectors of the smaller side.
void fill_far(std::span<const float> matrix, int64_t rows, int64_t cols, const std::vector<double>& near,
              Svd& svd) {
    const int64_t rank = svd.rank, size = std::max(rows, cols);
    const bool tall = rows > cols;
    const Vectors far =
        tall ? Vectors{svd.u.data(), rows, rank, rank, 1} : Vectors{svd.v.data(), cols, rank, 1, cols};
    const int64_t other = std::min(rows, cols), count = std::clamp<int64_t>(kPanel / other, 1, size);
    std::vector<double> panel(count * other), product(count * rank);
    const blas::Kept kept(std::span<const double>{near});
    for (int64_t begin = 0; begin < size; begin += count) {
        const int64_t n = std::min(count, size - begin);
        // The panel is other x n for tall matrices (rows of the matrix), n x other for wide ones.
        if (tall) {
            std::copy_n(matrix.begin() + begin * other, n * other, panel.begin());
        } else {
            for (int64_t i = 0; i < rows; ++i)
                std::copy_n(matrix.begin() + i * cols + begin, n, panel.begin() + i * n);
        }
        blas::multiply(tall ? Op::transposed : Op::plain, Op::plain, {n, rank, other}, panel.data(),
                       near.data(), product.data());
        for (int64_t k = 0; k < rank; ++k) {
            if (svd.s[k] <= kNoise * svd.s[0]) continue;
            for (int64_t i = 0; i < n; ++i)
                far.at(begin + i, k) = static_cast<float>(product[k * n + i] / svd.s[k]);
        }
    }
    const auto first = std::ranges::find_if(svd.s, [&](double s) { return s <= kBlurred * svd.s[0]; });
    if (first != svd.s.end()) complete(far, first - svd.s.begin(), svd.s);
}

Svd decompose(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t rank, double total) {
    Svd svd;
    svd.rank = rank = std::min({rank, rows, cols});
    const int64_t n = std::min(rows, cols);
    auto eigen = blas::leading_eigenvectors(small_gram(matrix, rows, cols), n, rank);
    check_interrupt();
    svd.s = roots(eigen.values, rank);
    svd.u.resize(rows * rank);
    svd.v.resize(rank * cols);
    for (int64_t k = 0; k < rank; ++k) {
        for (int64_t i = 0; i < n; ++i) {
            (rows > cols ? svd.v[k * n + i] : svd.u[i * rank + k]) =
                static_cast<float>(eigen.vectors[k * n + i]);
        }
    }
    fill_far(matrix, rows, cols, eigen.vectors, svd);
    svd.relative_error = relative_error(matrix, rows, cols, svd, total);
    return svd;
}

}  // namespace

Svd truncated_svd(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t rank) {
    check_rank(rank);
    const double total = check_matrix(matrix, rows, cols);
    return decompose(matrix, rows, cols, rank, total);
}

std::vector<double> singular_values(std::span<const float> matrix, int64_t rows, int64_t cols) {
    check_matrix(matrix, rows, cols);
    const int64_t n = std::min(rows, cols);
    return roots(blas::leading_eigenvectors(small_gram(matrix, rows, cols), n, 0).values, n);
}

int64_t rank_for_energy(std::span<const double> singular_values, double energy) {
    if (!(energy >= 0 && energy <= 1)) {
        fail(ErrorCode::usage, "linalg", "an energy of {}, expected 0 to 1", energy);
    }
    const double total =
        std::inner_product(singular_values.begin(), singular_values.end(), singular_values.begin(), 0.0);
    double sum = 0;
    int64_t rank = 0;
    for (const double s : singular_values) {
        if (rank > 0 && (sum >= energy * total || s == 0)) break;
        sum += s * s;
        ++rank;
    }
    return std::max<int64_t>(rank, 1);
}

Svd randomized_svd(std::span<const float> matrix, int64_t rows, int64_t cols, int64_t rank, int iterations,
                   uint64_t seed) {
    check_rank(rank);
    if (iterations < 0) fail(ErrorCode::usage, "linalg", "{} iterations, expected at least 0", iterations);
    const double total = check_matrix(matrix, rows, cols);
    const blas::Kept kept(matrix);
    rank = std::min({rank, rows, cols});
    // In column-major terms the matrix is cols x rows, `right` a basis of its columns, `left` of its rows.
    std::vector<float> right(cols * rank), left(rows * rank);
    blas::Normal normal(seed);
    for (float& x : left) x = static_cast<float>(normal());
    for (int i = 0;; ++i) {
        check_interrupt();
        blas::multiply(Op::plain, Op::plain, {cols, rank, rows}, matrix.data(), left.data(), right.data());
        blas::householder(cols, rank, right.data());
        blas::multiply(Op::transposed, Op::plain, {rows, rank, cols}, matrix.data(), right.data(),
                       left.data());
        if (i == iterations) break;
        blas::householder(rows, rank, left.data());
    }
    // The matrix in this basis is rank x rows; read as row major, `left` is its transpose.
    Svd inner = decompose(left, rank, rows, rank, blas::energy(left, "the matrix within its basis"));
    Svd svd{rank, std::vector<float>(rows * rank), std::move(inner.s), std::vector<float>(rank * cols), 0};
    for (int64_t k = 0; k < rank; ++k) {
        for (int64_t i = 0; i < rows; ++i) svd.u[i * rank + k] = inner.v[k * rows + i];
    }
    // Row-major inner.u is its own transpose in column major.
    blas::multiply(Op::plain, Op::transposed, {cols, rank, rank}, right.data(), inner.u.data(), svd.v.data());
    svd.relative_error = relative_error(matrix, rows, cols, svd, total);
    return svd;
}

}  // namespace refold
