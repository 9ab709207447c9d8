#include "linalg/tucker.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <numeric>

#include "core/error.h"
#include "core/interrupt.h"
#include "linalg/blas.h"
#include "linalg/device.h"

namespace refold {
namespace {

using blas::Op;
using Dims = std::array<int64_t, 4>;

constexpr int kModes = 3;
// Up to this dimension a full eigendecomposition in float64 is cheap enough.
constexpr int64_t kSmall = 256;
// Tensors with at least this many elements sum those Gram matrices in mixed precision.
constexpr int64_t kMany = int64_t{1} << 20;
// Below this squared relative error float32 Gram matrices and differences of norms are too inaccurate.
constexpr double kPreciseBelow = 1e-3;
// Refinement of a mode's vectors stops when a step lowers the squared error by less than the fraction `near`.
// When `steps` are not enough, a full eigendecomposition is cheaper; smaller dimensions reach that point
// sooner.
struct RefinementLimits {
    int steps = 0;
    double near = 0;
};
constexpr int64_t kLarge = 1024;
constexpr RefinementLimits kLimits{1, 4e-5}, kLimitsLarge{6, 4e-6};
// An eigenvalue is strong when it exceeds the smallest kept one by this factor.
constexpr double kStrong = 8;
constexpr int kHeadSteps = 1;

int64_t product(std::span<const int64_t> dims) {
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// A tensor that owns its memory or views another's.
struct Tensor {
    Dims dims{};
    const float* data = nullptr;
    std::unique_ptr<float[]> own = nullptr;

    Tensor view() const { return {dims, data}; }
    int64_t size() const { return product(dims); }
    // The tensor as [before, dims[mode], after].
    int64_t before(int mode) const { return product(std::span(dims).first(mode)); }
    int64_t after(int mode) const { return product(std::span(dims).subspan(mode + 1)); }
};

// Contracts index `mode` of x with the columns of `factor` (transposed) or with its rows (plain).
Tensor contract(const Tensor& x, int mode, Op op, const float* factor, int64_t to) {
    const int64_t from = x.dims[mode], a = x.before(mode), c = x.after(mode);
    Tensor y{x.dims, nullptr};
    y.dims[mode] = to;
    y.own = std::make_unique_for_overwrite<float[]>(y.size());
    y.data = y.own.get();
    if (a == 1) {
        blas::multiply(op, Op::plain, {to, c, from}, factor, x.data, y.own.get());
        return y;
    }
    const Op right = op == Op::transposed ? Op::plain : Op::transposed;
    blas::multiply_each(Op::plain, right, {a, to, from}, {c, a * from, 0, a * to}, x.data, factor,
                        y.own.get());
    return y;
}

// The mode unfolding of x times the transposed one of y: x.dims[mode] x y.dims[mode].
std::vector<float> cross(const Tensor& x, const Tensor& y, int mode) {
    const int64_t n = x.dims[mode], r = y.dims[mode], a = x.before(mode), c = x.after(mode);
    std::vector<float> out(n * r);
    if (a == 1) {
        blas::multiply(Op::plain, Op::transposed, {n, r, c}, x.data, y.data, out.data());
        return out;
    }
    blas::multiply_each(Op::transposed, Op::plain, {n, r, a}, {c, a * n, a * r, 0}, x.data, y.data,
                        out.data());
    return out;
}

double energy(const Tensor& x) { return blas::energy({x.data, static_cast<size_t>(x.size())}, "a product"); }

template <typename Real>
std::vector<Real> mode_gram(const Tensor& x, int mode) {
    return blas::gram<Real>(x.data, x.before(mode), x.dims[mode], x.after(mode));
}

std::vector<double> mixed_mode_gram(const Tensor& x, int mode) {
    return blas::mixed_gram(x.data, x.before(mode), x.dims[mode], x.after(mode));
}

double trace(const std::vector<float>& matrix, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += matrix[i * (n + 1)];
    return sum;
}

template <typename Real>
double dot(std::span<const Real> a, std::span<const Real> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
}

std::vector<float> identity(int64_t n) {
    std::vector<float> out(n * n);
    for (int64_t i = 0; i < n; ++i) out[i * (n + 1)] = 1;
    return out;
}

// core x1 U1 x2 U2 x3 U3, skipping identities.
Tensor expand(Tensor core, const TuckerResult& result, const Dims& dims) {
    for (int m = kModes - 1; m >= 0; --m) {
        if (result.ranks[m] == dims[m]) continue;
        core = contract(core, m, Op::plain, result.factors[m].data(), dims[m]);
    }
    return core;
}

// The energy that a mode's factor captures, before (if requested) and after its update.
struct FactorEnergy {
    double before = 0, after = 0;
};

class Hooi {
public:
    Hooi(std::span<const float> tensor, const Dims& dims, const TuckerOptions& options, double total)
        : tensor_{dims, tensor.data()}, kept_(tensor), options_(options), total_(total) {
        for (int m = 0; m < kModes; ++m) {
            result_.ranks[m] = std::min(options.ranks[m], dims[m]);
            full_[m] = result_.ranks[m] == dims[m];
        }
        // float32 squares would overflow or underflow.
        precise_ = total > 1e30 || total < 1e-24;
    }

    TuckerResult run() {
        start();
        if (total_ > 0 && std::ranges::count(full_, false) > 0) iterate();
        const Tensor core = project(kModes);
        result_.core.assign(core.data, core.data + core.size());
        return std::move(result_);
    }

private:
    int64_t rank(int m) const { return result_.ranks[m]; }
    // The first mode with a rank below its dimension.
    int first_mode() const { return static_cast<int>(std::ranges::find(full_, false) - full_.begin()); }
    std::vector<float>& factor(int m) { return result_.factors[m]; }
    bool in_double(int m) const { return precise_ || tensor_.dims[m] <= kSmall; }

    // HOSVD: computes every mode's factor from the tensor itself.
    void start() {
        const int first = first_mode();
        for (int m = 0; m < kModes; ++m) {
            check_interrupt();
            if (m == first && !options_.hosvd_error) {
                factor(m).clear();
            } else if (full_[m]) {
                factor(m) = identity(rank(m));
            } else if (in_double(m)) {
                take(m, small_gram(tensor_, m));
            } else {
                take(m, mode_gram<float>(tensor_, m));
            }
        }
        contracted_ = {};
    }

    void iterate() {
        const int first = first_mode();
        if (precise_ && options_.hosvd_error) result_.hosvd_error = residual();
        double previous = 0;
        for (int sweep = 1; sweep <= options_.max_sweeps; ++sweep) {
            double kept = 0;
            for (int m = first; m < kModes; ++m) {
                check_interrupt();
                if (full_[m]) continue;
                const FactorEnergy energy = update(m, sweep);
                kept = energy.after;
                if (sweep > 1 || m > first || precise_) continue;
                if (1 - energy.after / total_ < kPreciseBelow) {
                    precise_ = true;
                    start();
                    return iterate();
                }
                if (options_.hosvd_error)
                    result_.hosvd_error = std::sqrt(std::max(0.0, 1 - energy.before / total_));
            }
            result_.sweeps = sweep;
            result_.relative_error = error(kept);
            if (options_.on_sweep) options_.on_sweep(sweep, result_.relative_error);
            if (sweep > 2 && std::abs(previous - result_.relative_error) < options_.tolerance) break;
            previous = result_.relative_error;
        }
    }

    double error(double kept) {
        const double square = 1 - kept / total_;
        return square < kPreciseBelow ? residual() : std::sqrt(square);
    }

    // |tensor - reconstruction| / |tensor|, one slice of mode 4 at a time.
    double residual() {
        Tensor core = project(kModes);
        const int64_t slices = core.dims[3], from = core.size() / slices, to = tensor_.size() / slices;
        core.dims[3] = 1;
        Dims dims = tensor_.dims;
        dims[3] = 1;
        double sum = 0;
        for (int64_t i = 0; i < slices; ++i) {
            const Tensor slice = expand({core.dims, core.data + i * from}, result_, dims);
            for (int64_t k = 0; k < to; ++k) {
                const double difference = static_cast<double>(slice.data[k]) - tensor_.data[i * to + k];
                sum += difference * difference;
            }
        }
        return std::sqrt(sum / total_);
    }

    // Contracts the tensor with the factors of all modes but `skip`. The contraction of mode 1 is the
    // expensive one; it is kept, because all other modes need the same.
    Tensor project(int skip) {
        Tensor x = tensor_.view();
        if (skip != 0 && !full_[0]) {
            if (contracted_.data == nullptr) {
                contracted_ = contract(tensor_, 0, Op::transposed, factor(0).data(), rank(0));
            }
            x = contracted_.view();
        }
        for (int m = 1; m < kModes; ++m) {
            if (m != skip && !full_[m]) x = contract(x, m, Op::transposed, factor(m).data(), rank(m));
        }
        return x;
    }

    // Keeps the first `head` vectors of the factor and replaces the others by the leading eigenvectors.
    template <typename Real>
    double take(int m, std::vector<Real> gram, int64_t head = 0) {
        const int64_t n = tensor_.dims[m], rest = rank(m) - head;
        const auto eigen = blas::leading_eigenvectors(std::move(gram), n, rest);
        factor(m).resize(n * rank(m));
        std::copy(eigen.vectors.begin(), eigen.vectors.end(), factor(m).begin() + n * head);
        next_[m] = std::max(0.0, eigen.values[rest]);
        if (head == 0) {
            const double bound = kStrong * eigen.values[rest - 1];
            heads_[m] = std::ranges::count_if(eigen.values, [&](double x) { return x > bound; });
            heads_[m] = std::min(heads_[m], rest / 16);
        }
        return std::accumulate(eigen.values.begin(), eigen.values.begin() + rest, 0.0);
    }

    // In a float32 Gram matrix, rounding errors of strong eigenvectors hide the weak ones. So this finds the
    // strong ones by power iteration on the tensor itself and returns the tensor without them.
    Tensor take_head(int m, const Tensor& x, double& kept) {
        const int64_t n = tensor_.dims[m], head = heads_[m];
        kept = 0;
        if (head == 0) return x.view();
        std::vector<float> w(factor(m).begin(), factor(m).begin() + n * head);
        Tensor inside;
        for (int i = 0; i <= kHeadSteps; ++i) {
            inside = contract(x, m, Op::transposed, w.data(), head);
            if (i == kHeadSteps) break;
            w = cross(x, inside, m);
            blas::householder(n, head, w.data());
        }
        kept = energy(inside);
        Tensor rest = contract(inside, m, Op::plain, w.data(), n);
        for (int64_t i = 0; i < rest.size(); ++i) rest.own[i] = x.data[i] - rest.own[i];
        std::ranges::copy(w, factor(m).begin());
        return rest;
    }

    std::vector<double> small_gram(const Tensor& x, int m) const {
        return precise_ || m == 0 || tensor_.size() < kMany ? mode_gram<double>(x, m) : mixed_mode_gram(x, m);
    }

    FactorEnergy update(int m, int sweep) {
        const Tensor x = project(m);
        if (m == 0) contracted_ = {};
        const bool measured = sweep == 1 && m == first_mode() && options_.hosvd_error;
        if (!in_double(m)) {
            const double before =
                measured ? energy(contract(x, m, Op::transposed, factor(m).data(), rank(m))) : 0;
            double kept = 0;
            std::vector<float> gram = mode_gram<float>(take_head(m, x, kept), m);
            return {before, kept + refine(m, std::move(gram), sweep, kept)};
        }
        std::vector<double> gram = small_gram(x, m);
        double before = 0;
        if (measured) {
            const std::vector<double> u(factor(m).begin(), factor(m).end());
            std::vector<double> image(u.size());
            blas::multiply_symmetric(tensor_.dims[m], rank(m), gram.data(), u.data(), image.data());
            before = dot<double>(u, image);
        }
        return {before, take(m, std::move(gram))};
    }

    // The old factor U (its head removed, as from the Gram matrix G) is near the leading eigenvectors.
    // Refines it by block power iteration on G - c, as U + (G U - U H) (H - c)^-1 with H = U' G U, which
    // keeps the columns well conditioned. c is the middle of the range of the remaining eigenvalues.
    double refine(int m, std::vector<float> gram, int sweep, double kept) {
        const int64_t n = tensor_.dims[m], head = heads_[m], r = rank(m) - head;
        // The first sweep has no vectors or only HOSVD's to start from, which are too far away.
        if (sweep == 1) return take_all(m, std::move(gram), head);
        const RefinementLimits limits = n < kLarge ? kLimits : kLimitsLarge;
        const auto shift = static_cast<float>(next_[m] / 2);
        std::vector<float> u(factor(m).begin() + n * head, factor(m).end());
        std::vector<float> image(n * r), h(r * r), step;
        for (int i = 0; i < limits.steps; ++i) {
            blas::multiply_symmetric(n, r, gram.data(), u.data(), image.data());
            blas::multiply(Op::transposed, Op::plain, {r, r, n}, u.data(), image.data(), h.data());
            const double before = trace(h, r);
            blas::multiply(Op::plain, Op::plain, {n, r, r}, u.data(), h.data(), image.data(), 1, -1);
            for (int64_t k = 0; k < r; ++k) h[k * (r + 1)] -= shift;
            step = image;
            if (!blas::solve_right(n, r, h.data(), step.data())) break;
            const double gain = dot<float>(step, image), after = before + gain;
            const bool near = gain < limits.near * (total_ - kept - after);
            if (!near && i + 1 == limits.steps) break;
            for (size_t k = 0; k < step.size(); ++k) step[k] += u[k];
            if (!blas::orthonormalize(n, r, step.data())) break;
            std::swap(u, step);
            if (near) {
                std::vector<float> whole(factor(m).begin(), factor(m).begin() + n * head);
                whole.insert(whole.end(), u.begin(), u.end());
                if (!blas::orthonormalize(n, rank(m), whole.data())) break;
                factor(m) = std::move(whole);
                return after;
            }
        }
        return take_all(m, std::move(gram), head);
    }

    double take_all(int m, std::vector<float> gram, int64_t head) {
        const double after = take(m, std::move(gram), head);
        if (!blas::orthonormalize(tensor_.dims[m], rank(m), factor(m).data()))
            fail(ErrorCode::internal, "linalg", "eigenvectors of mode {} are dependent", m + 1);
        return after;
    }

    Tensor tensor_;
    blas::Kept kept_;
    const TuckerOptions& options_;
    double total_;
    bool precise_;
    std::array<bool, kModes> full_{};
    std::array<int64_t, kModes> heads_{};  // number of strong eigenvectors
    std::array<double, kModes> next_{};    // the largest eigenvalue not kept
    TuckerResult result_;
    Tensor contracted_;  // the tensor with mode 1's factor, until the factor changes
};

}  // namespace

TuckerResult partial_tucker(std::span<const float> tensor, const Dims& dims, const TuckerOptions& options) {
    blas::check_size(dims, tensor.size(), "the tensor");
    for (const int64_t r : options.ranks) {
        if (r < 1) fail(ErrorCode::usage, "linalg", "a rank of {}, expected at least 1", r);
    }
    if (options.max_sweeps < 1) {
        fail(ErrorCode::usage, "linalg", "{} sweeps, expected at least 1", options.max_sweeps);
    }
    const double total = blas::energy(tensor, "the tensor");
    return Hooi(tensor, dims, options, total).run();
}

std::vector<float> reconstruct(const TuckerResult& result, const Dims& dims) {
    const Dims core = {result.ranks[0], result.ranks[1], result.ranks[2], dims[3]};
    blas::check_size(core, result.core.size(), "the core");
    for (int m = 0; m < kModes; ++m) {
        const std::array size = {dims[m], result.ranks[m]};
        blas::check_size(size, result.factors[m].size(), "a factor");
    }
    const Tensor whole = expand({core, result.core.data()}, result, dims);
    return {whole.data, whole.data + whole.size()};
}

}  // namespace refold
