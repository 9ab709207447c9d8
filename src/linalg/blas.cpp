#include "linalg/blas.h"

#include <cblas.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>

#include "core/error.h"
#include "linalg/blas_kernels.h"
#include "linalg/blas_threads.h"
#include "linalg/device.h"

// LAPACK's Fortran interface: every argument by address, string lengths last. The names are LAPACK's.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void ssytrd_(const char*, const int*, float*, const int*, float*, float*, float*, float*, const int*, int*,
             size_t);
void dsytrd_(const char*, const int*, double*, const int*, double*, double*, double*, double*, const int*,
             int*, size_t);
void sstedc_(const char*, const int*, float*, float*, float*, const int*, float*, const int*, int*,
             const int*, int*, size_t);
void dstedc_(const char*, const int*, double*, double*, double*, const int*, double*, const int*, int*,
             const int*, int*, size_t);
void ssterf_(const int*, float*, float*, int*);
void dsterf_(const int*, double*, double*, int*);
void sormtr_(const char*, const char*, const char*, const int*, const int*, const float*, const int*,
             const float*, float*, const int*, float*, const int*, int*, size_t, size_t, size_t);
void dormtr_(const char*, const char*, const char*, const int*, const int*, const double*, const int*,
             const double*, double*, const int*, double*, const int*, int*, size_t, size_t, size_t);
void sgeqrf_(const int*, const int*, float*, const int*, float*, float*, const int*, int*);
void dgeqrf_(const int*, const int*, double*, const int*, double*, double*, const int*, int*);
void sorgqr_(const int*, const int*, const int*, float*, const int*, const float*, float*, const int*, int*);
void dorgqr_(const int*, const int*, const int*, double*, const int*, const double*, double*, const int*,
             int*);
void spotrf_(const char*, const int*, float*, const int*, int*, size_t);
void dpotrf_(const char*, const int*, double*, const int*, int*, size_t);
void dpotrs_(const char*, const int*, const int*, const double*, const int*, double*, const int*, int*,
             size_t);
}
// NOLINTEND(readability-identifier-naming)

namespace refold::blas {
namespace {

[[maybe_unused]] const bool kChosen = choose_kernels();  // before main

constexpr int64_t kPanel = int64_t{1} << 21;  // elements converted at a time
constexpr int kBlock = 64;                    // LAPACK's block size, for work space

int number(int64_t n) { return static_cast<int>(n); }

template <typename Real>
constexpr bool kSingle = std::is_same_v<Real, float>;

void check(int info, const char* routine) {
    if (info != 0) fail(ErrorCode::internal, "linalg", "LAPACK's {} failed: info {}", routine, info);
}

CBLAS_TRANSPOSE transpose(Op op) { return op == Op::plain ? CblasNoTrans : CblasTrans; }

// g (n x n) += x' x or x x', x being a x n or n x a.
void add_gram(Op op, int64_t n, int64_t a, const float* x, int64_t lda, float* g) {
    const OperationThreads threads(n * n * a);
    cblas_ssyrk(CblasColMajor, CblasLower, transpose(op), number(n), number(a), 1, x, number(lda), 1, g,
                number(n));
}
void add_gram(Op op, int64_t n, int64_t a, const double* x, int64_t lda, double* g) {
    const OperationThreads threads(n * n * a);
    cblas_dsyrk(CblasColMajor, CblasLower, transpose(op), number(n), number(a), 1, x, number(lda), 1, g,
                number(n));
}

int64_t square(int64_t n) { return n * n; }

double count_of(double factor, int64_t a, int64_t b, int64_t c) {
    return factor * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// The device, if a product is worth its way there.
template <typename Real>
Device* device_for_product(const Product<Real>& p) {
    if (device() == nullptr) return nullptr;
    const auto [m, n, k] = p.shape;
    const auto spread = [&](int64_t matrix, int64_t step) {
        return step == 0 ? matrix : matrix * p.steps.count;
    };
    return device_for(count_of(2 * static_cast<double>(p.steps.count), m, n, k),
                      moved(p.a, spread(m * k, p.steps.a)) + moved(p.b, spread(k * n, p.steps.b)) +
                          (p.beta == 0 ? 1 : 2) * moved(p.c, spread(m * n, p.steps.c)));
}

// Whether the device has done it.
template <typename Real>
bool multiplied(const Product<Real>& product) {
    Device* const on = device_for_product(product);
    if (on != nullptr) on->multiply(product);
    return on != nullptr;
}

template <typename Real>
bool multiplied_symmetric(int64_t n, int64_t r, const Real* g, const Real* b, Real* c) {
    Device* const on = device_for(count_of(2, n, n, r), moved(g, n * n) + moved(b, n * r) + moved(c, n * r));
    if (on != nullptr) on->multiply_symmetric(n, r, g, b, c);
    return on != nullptr;
}

template <typename Real>
Device* device_for_gram(const float* x, int64_t a, int64_t n, int64_t c) {
    return device_for(count_of(2, square(n), a, c),
                      moved(x, a * n * c) + static_cast<double>(square(n) * sizeof(Real)));
}

template <typename Real>
void householder_of(int64_t rows, int64_t columns, Real* x) {
    if (Device* const on = device_for(count_of(4, rows, columns, columns), 2 * moved(x, rows * columns))) {
        on->householder(rows, columns, x);
        return;
    }
    const OperationThreads threads(rows * columns * columns);
    const int n = number(rows), r = number(columns), size = r * kBlock;
    int info = 0;
    std::vector<Real> tau(columns), work(size);
    if constexpr (kSingle<Real>) {
        sgeqrf_(&n, &r, x, &n, tau.data(), work.data(), &size, &info);
        check(info, "sgeqrf");
        sorgqr_(&n, &r, &r, x, &n, tau.data(), work.data(), &size, &info);
        check(info, "sorgqr");
    } else {
        dgeqrf_(&n, &r, x, &n, tau.data(), work.data(), &size, &info);
        check(info, "dgeqrf");
        dorgqr_(&n, &r, &r, x, &n, tau.data(), work.data(), &size, &info);
        check(info, "dorgqr");
    }
}

}  // namespace

double energy(std::span<const float> values, const char* what) {
    constexpr size_t kLanes = 16;
    double lanes[kLanes] = {};
    size_t i = 0;
    for (; i + kLanes <= values.size(); i += kLanes) {
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const double x = values[i + lane];
            lanes[lane] += x * x;
        }
    }
    for (; i < values.size(); ++i) lanes[0] += static_cast<double>(values[i]) * values[i];
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    // A sum of squares of finite floats never overflows float64.
    if (!std::isfinite(sum)) {
        const auto at = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
        fail(ErrorCode::input, "linalg", "{} is not finite: got {} at element {}", what, *at,
             at - values.begin());
    }
    return sum;
}

void check_size(std::span<const int64_t> dims, size_t size, const char* what) {
    constexpr int64_t kMost = std::numeric_limits<int>::max();
    int64_t product = 1;
    for (const int64_t n : dims) {
        if (n < 1) fail(ErrorCode::input, "linalg", "{} has a dimension of {}, expected at least 1", what, n);
        if (n > kMost / product) {
            fail(ErrorCode::input, "linalg", "{} is too large: expected at most {} elements", what, kMost);
        }
        product *= n;
    }
    if (static_cast<size_t>(product) != size) {
        fail(ErrorCode::input, "linalg", "{} has the wrong size: got {} elements, expected {}", what, size,
             product);
    }
}

namespace {

template <typename Real>
constexpr auto kGemm = [] {
    if constexpr (kSingle<Real>)
        return cblas_sgemm;
    else
        return cblas_dgemm;
}();

// Large products in tiles of the result, which are the same for any number of threads.
template <typename Real>
void multiply_here(const Product<Real>& p) {
    constexpr int64_t kTile = 192;
    const auto [m, n, k] = p.shape;
    const int64_t lda = p.op_a == Op::plain ? m : k, ldb = p.op_b == Op::plain ? k : n;
    const auto compute = [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
        kGemm<Real>(CblasColMajor, transpose(p.op_a), transpose(p.op_b), number(rows), number(columns),
                    number(k), p.alpha, p.a + (p.op_a == Op::plain ? row : row * lda), number(lda),
                    p.b + (p.op_b == Op::plain ? column * ldb : column), number(ldb), p.beta,
                    p.c + column * m + row, number(m));
    };
    if (m * n * k <= kWorthThreads) {
        const OperationThreads one(m * n * k);
        return compute(0, m, 0, n);
    }
    const int64_t down = (m + kTile - 1) / kTile, across = (n + kTile - 1) / kTile;
    share_out(down * across, [&](int64_t tile) {
        const int64_t row = tile % down * kTile, column = tile / down * kTile;
        compute(row, std::min(kTile, m - row), column, std::min(kTile, n - column));
    });
}

}  // namespace

void multiply(Op op_a, Op op_b, Shape s, const float* a, const float* b, float* c, float beta, float alpha) {
    const Product<float> product{op_a, op_b, s, {}, a, b, c, beta, alpha};
    if (!multiplied(product)) multiply_here(product);
}

void multiply(Op op_a, Op op_b, Shape s, const double* a, const double* b, double* c, double beta,
              double alpha) {
    const Product<double> product{op_a, op_b, s, {}, a, b, c, beta, alpha};
    if (!multiplied(product)) multiply_here(product);
}

void multiply_parts(Op op_a, Op op_b, Shape s, Part a, Part b, float* c) {
    cblas_sgemm(CblasColMajor, transpose(op_a), transpose(op_b), number(s.m), number(s.n), number(s.k), 1,
                a.data, number(a.stride), b.data, number(b.stride), 0, c, number(s.m));
}

void multiply_each(Op op_a, Op op_b, Shape shape, const Steps& steps, const float* a, const float* b,
                   float* c) {
    if (multiplied<float>({op_a, op_b, shape, steps, a, b, c, 0, 1})) return;
    for (int64_t i = 0; i < steps.count; ++i) {
        multiply(op_a, op_b, shape, a + i * steps.a, b + i * steps.b, c + i * steps.c,
                 steps.c == 0 && i > 0 ? 1.F : 0.F);
    }
}

void multiply_symmetric(int64_t n, int64_t r, const float* g, const float* b, float* c) {
    if (multiplied_symmetric(n, r, g, b, c)) return;
    const OperationThreads threads(n * n * r);
    cblas_ssymm(CblasColMajor, CblasLeft, CblasLower, number(n), number(r), 1, g, number(n), b, number(n), 0,
                c, number(n));
}

void multiply_symmetric(int64_t n, int64_t r, const double* g, const double* b, double* c) {
    if (multiplied_symmetric(n, r, g, b, c)) return;
    const OperationThreads threads(n * n * r);
    cblas_dsymm(CblasColMajor, CblasLeft, CblasLower, number(n), number(r), 1, g, number(n), b, number(n), 0,
                c, number(n));
}

template <typename Real>
std::vector<Real> gram(const float* x, int64_t a, int64_t n, int64_t c) {
    std::vector<Real> g(static_cast<size_t>(n * n));
    if (Device* const on = device_for_gram<Real>(x, a, n, c)) {
        on->gram(x, a, n, c, g.data());
        return g;
    }
    if constexpr (kSingle<Real>) {
        if (a == 1) {
            add_gram(Op::plain, n, c, x, n, g.data());
        } else {
            for (int64_t k = 0; k < c; ++k) add_gram(Op::transposed, n, a, x + k * a * n, a, g.data());
        }
    } else {
        const int64_t rows = std::clamp<int64_t>(kPanel / n, 1, a == 1 ? c : a);
        std::vector<Real> panel(static_cast<size_t>(rows * n));
        if (a == 1) {
            for (int64_t k = 0; k < c; k += rows) {
                const int64_t count = std::min(rows, c - k);
                std::copy_n(x + k * n, count * n, panel.begin());
                add_gram(Op::plain, n, count, panel.data(), n, g.data());
            }
            return g;
        }
        for (int64_t k = 0; k < c; ++k) {
            for (int64_t i = 0; i < a; i += rows) {
                const int64_t count = std::min(rows, a - i);
                for (int64_t j = 0; j < n; ++j) {
                    std::copy_n(x + i + a * (j + n * k), count, panel.begin() + j * count);
                }
                add_gram(Op::transposed, n, count, panel.data(), count, g.data());
            }
        }
    }
    return g;
}

template std::vector<float> gram(const float*, int64_t, int64_t, int64_t);
template std::vector<double> gram(const float*, int64_t, int64_t, int64_t);

std::vector<double> mixed_gram(const float* x, int64_t a, int64_t n, int64_t c) {
    std::vector<double> sum(static_cast<size_t>(n * n));
    if (Device* const on = device_for_gram<double>(x, a, n, c)) {
        on->mixed_gram(x, a, n, c, sum.data());
        return sum;
    }
    for (int64_t k = 0; k < c; ++k) {
        const std::vector<float> part = gram<float>(x + k * a * n, a, n, 1);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    return sum;
}

// Reduces to tridiagonal form, solves it by divide and conquer, and transforms only the leading vectors back.
template <typename Real>
Eigen<Real> leading_eigenvectors(std::vector<Real> matrix, int64_t size, int64_t count) {
    if (size > 46340) fail(ErrorCode::unsupported, "linalg", "{} rows and columns are too many", size);
    // Reduction to tridiagonal form; with vectors also divide and conquer, and transforming back.
    const double operations = count_of(count == 0 ? 4.0 / 3 : 4, size, size, size);
    if (Device* const on =
            device_for(operations, static_cast<double>((square(size) + size * count) * sizeof(Real))))
        return on->leading_eigenvectors(matrix.data(), size, count);
    const OperationThreads threads(size * size * size);
    const int n = number(size), r = number(count);
    int info = 0;
    std::vector<Real> d(size), e(size), tau(size), work(size * kBlock);
    const int work_size = n * kBlock;
    if constexpr (kSingle<Real>) {
        ssytrd_("L", &n, matrix.data(), &n, d.data(), e.data(), tau.data(), work.data(), &work_size, &info,
                1);
    } else {
        dsytrd_("L", &n, matrix.data(), &n, d.data(), e.data(), tau.data(), work.data(), &work_size, &info,
                1);
    }
    check(info, "sytrd");
    Eigen<Real> out;
    if (r == 0) {
        if constexpr (kSingle<Real>) {
            ssterf_(&n, d.data(), e.data(), &info);
        } else {
            dsterf_(&n, d.data(), e.data(), &info);
        }
        check(info, "sterf");
    } else {
        std::vector<Real> vectors(size * size);
        std::vector<Real> scratch(1 + 4 * size + size * size);
        std::vector<int> integers(3 + 5 * size);
        const int scratch_size = number(static_cast<int64_t>(scratch.size()));
        const int integers_size = number(static_cast<int64_t>(integers.size()));
        if constexpr (kSingle<Real>) {
            sstedc_("I", &n, d.data(), e.data(), vectors.data(), &n, scratch.data(), &scratch_size,
                    integers.data(), &integers_size, &info, 1);
        } else {
            dstedc_("I", &n, d.data(), e.data(), vectors.data(), &n, scratch.data(), &scratch_size,
                    integers.data(), &integers_size, &info, 1);
        }
        check(info, "stedc");
        scratch = {};
        out.vectors.resize(size * count);
        for (int64_t j = 0; j < count; ++j) {
            std::copy_n(vectors.begin() + (size - 1 - j) * size, size, out.vectors.begin() + j * size);
        }
        if constexpr (kSingle<Real>) {
            sormtr_("L", "L", "N", &n, &r, matrix.data(), &n, tau.data(), out.vectors.data(), &n, work.data(),
                    &work_size, &info, 1, 1, 1);
        } else {
            dormtr_("L", "L", "N", &n, &r, matrix.data(), &n, tau.data(), out.vectors.data(), &n, work.data(),
                    &work_size, &info, 1, 1, 1);
        }
        check(info, "ormtr");
    }
    out.values.assign(d.rbegin(), d.rend());
    return out;
}

template Eigen<float> leading_eigenvectors(std::vector<float>, int64_t, int64_t);
template Eigen<double> leading_eigenvectors(std::vector<double>, int64_t, int64_t);

bool orthonormalize(int64_t n, int64_t r, float* x) {
    if (Device* const on = device_for(count_of(3, n, r, r), 2 * moved(x, n * r)))
        return on->orthonormalize(n, r, x);
    std::vector<float> g = gram<float>(x, n, r, 1);
    const OperationThreads threads(n * r * r);
    const int order = number(r);
    int info = 0;
    spotrf_("L", &order, g.data(), &order, &info, 1);
    if (info != 0) return false;
    for (int64_t j = 0; j < r; ++j) {
        if (g[j * r + j] < kLeastPivot) return false;
    }
    cblas_strsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, number(n), order, 1,
                g.data(), order, x, number(n));
    return true;
}

namespace {

// Block column by block column: its own factor, the blocks below, and what they take from all blocks after.
bool cholesky_here(int64_t n, double* g) {
    constexpr int64_t kTile = 256;
    const auto block = [&](int64_t row, int64_t column) { return g + column * kTile * n + row * kTile; };
    const auto size = [&](int64_t tile) { return number(std::min(kTile, n - tile * kTile)); };
    const int64_t tiles = (n + kTile - 1) / kTile;
    const int stride = number(n);
    const SingleThread single(n * n * n <= kWorthThreads);
    for (int64_t k = 0; k < tiles; ++k) {
        const int order = size(k);
        int info = 0;
        {
            const OperationThreads one(0);
            dpotrf_("L", &order, block(k, k), &stride, &info, 1);
        }
        if (info != 0) return false;
        const int64_t below = tiles - k - 1;
        share_out(below, [&](int64_t i) {
            const int64_t row = k + 1 + i;
            cblas_dtrsm(CblasColMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, size(row), order, 1,
                        block(k, k), stride, block(row, k), stride);
        });
        share_out(below * (below + 1) / 2, [&](int64_t pair) {
            int64_t i = 0;
            for (; pair > i; ++i) pair -= i + 1;
            const int64_t row = k + 1 + i, column = k + 1 + pair;
            if (row == column)
                cblas_dsyrk(CblasColMajor, CblasLower, CblasNoTrans, size(row), order, -1, block(row, k),
                            stride, 1, block(row, row), stride);
            else
                cblas_dgemm(CblasColMajor, CblasNoTrans, CblasTrans, size(row), size(column), order, -1,
                            block(row, k), stride, block(column, k), stride, 1, block(row, column), stride);
        });
    }
    return true;
}

}  // namespace

bool cholesky(int64_t n, double* g) {
    if (Device* const on = device_for(count_of(1.0 / 3, n, n, n), 2 * moved(g, n * n)))
        return on->cholesky(n, g);
    return cholesky_here(n, g);
}

namespace {

Device* device_for_solving(int64_t n, int64_t r, const double* g, const double* b) {
    return device_for(count_of(1.0 / 3, n, n, n) + count_of(2, n, n, r),
                      moved(g, n * n) + 2 * moved(b, n * r));
}

}  // namespace

bool solve_shifted(int64_t n, int64_t r, const double* g, double shift, double* b) {
    if (Device* const on = device_for_solving(n, r, g, b)) return on->solve_shifted(n, r, g, shift, b);
    std::vector<double> matrix(g, g + n * n);
    for (int64_t i = 0; i < n; ++i) matrix[i * (n + 1)] += shift;
    return solve_positive(n, r, matrix.data(), b);
}

bool solve_positive(int64_t n, int64_t r, double* g, double* b) {
    if (Device* const on = device_for_solving(n, r, g, b)) return on->solve_shifted(n, r, g, 0, b);
    if (!cholesky(n, g)) return false;
    constexpr int64_t kColumns = 128;
    const int order = number(n);
    std::atomic<bool> solved = true;
    share_out((r + kColumns - 1) / kColumns, [&](int64_t part) {
        const int columns = number(std::min(kColumns, r - part * kColumns));
        int info = 0;
        dpotrs_("L", &order, &columns, g, &order, b + part * kColumns * n, &order, &info, 1);
        if (info != 0) solved = false;
    });
    return solved;
}

bool solve_right(int64_t n, int64_t r, float* h, float* x) {
    if (Device* const on = device_for(count_of(1.0 / 3, r, r, r) + count_of(2, n, r, r),
                                      moved(h, r * r) + 2 * moved(x, n * r)))
        return on->solve_right(n, r, h, x);
    const OperationThreads threads(n * r * r);
    const int order = number(r);
    int info = 0;
    spotrf_("L", &order, h, &order, &info, 1);
    if (info != 0) return false;
    for (const auto op : {CblasTrans, CblasNoTrans}) {
        cblas_strsm(CblasColMajor, CblasRight, CblasLower, op, CblasNonUnit, number(n), order, 1, h, order, x,
                    number(n));
    }
    return true;
}

void householder(int64_t n, int64_t r, double* x) { householder_of(n, r, x); }
void householder(int64_t n, int64_t r, float* x) { householder_of(n, r, x); }

// splitmix64 (Steele, Lea and Flood 2014) with the Box-Muller transform.
double Normal::uniform() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return (static_cast<double>((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
}

double Normal::operator()() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
}

}  // namespace refold::blas
