#include "linalg/pseudo_inverse.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "linalg/blas.h"

extern "C" void dgesdd_(const char* jobz, const int* m, const int* n, double* a, const int* lda, double* s,
                        double* u, const int* ldu, double* vt, const int* ldvt, double* work,
                        const int* lwork, int* iwork, int* info, size_t length);

namespace refold {
namespace {

// Column major: a (m x n) = u (m x k) diag(s) vt (k x n), k = min(m, n).
struct Decomposition {
    std::vector<double> u, s, vt;
};

Decomposition decompose(int m, int n, std::vector<double> a) {
    const int k = std::min(m, n);
    const auto size = [](int rows, int columns) {
        return static_cast<size_t>(rows) * static_cast<size_t>(columns);
    };
    Decomposition out{std::vector<double>(size(m, k)), std::vector<double>(static_cast<size_t>(k)),
                      std::vector<double>(size(k, n))};
    std::vector<int> integers(size(8, k));
    int info = 0;
    const auto call = [&](double* work, int length) {
        dgesdd_("S", &m, &n, a.data(), &m, out.s.data(), out.u.data(), &m, out.vt.data(), &k, work, &length,
                integers.data(), &info, 1);
    };
    double wanted = 0;
    call(&wanted, -1);
    std::vector<double> work(static_cast<size_t>(wanted));
    call(work.data(), static_cast<int>(wanted));
    if (info != 0)
        fail(ErrorCode::input, "pseudo-inverse", "the singular values of {} x {} numbers do not converge", m,
             n);
    return out;
}

}  // namespace

std::vector<double> solve_minimum_norm(int64_t rows, int64_t inputs, int64_t outputs,
                                       std::span<const double> x, std::span<const double> y,
                                       const SingularCut& cut) {
    const std::array dims_x = {rows, inputs}, dims_y = {rows, outputs};
    blas::check_size(dims_x, x.size(), "pseudo-inverse");
    blas::check_size(dims_y, y.size(), "pseudo-inverse");
    for (const auto& numbers : {x, y}) {
        if (!std::all_of(numbers.begin(), numbers.end(), [](double v) { return std::isfinite(v); }))
            fail(ErrorCode::input, "pseudo-inverse", "activations are not finite numbers");
    }
    // Row-major X is column-major X^T = u diag(s) vt, so pinv(X) = u diag(1 / s) vt.
    const Decomposition d = decompose(static_cast<int>(inputs), static_cast<int>(rows), {x.begin(), x.end()});
    const int64_t k = std::min(inputs, rows);
    std::vector<double> scaled(static_cast<size_t>(outputs * k));  // column major outputs x k
    blas::multiply(blas::Op::plain, blas::Op::transposed, {outputs, k, rows}, y.data(), d.vt.data(),
                   scaled.data());
    const double least = std::max(cut.absolute, cut.relative * d.s.front());
    for (size_t i = 0; i < scaled.size(); ++i) {
        const double s = d.s[i / static_cast<size_t>(outputs)];
        scaled[i] = s > least ? scaled[i] / s : 0;
    }
    std::vector<double> w(static_cast<size_t>(inputs * outputs));
    blas::multiply(blas::Op::plain, blas::Op::transposed, {inputs, outputs, k}, d.u.data(), scaled.data(),
                   w.data());
    return w;
}

}  // namespace refold
