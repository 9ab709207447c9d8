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

namespace refold {
namespace {

using blas::Op;
using Dims = std::array<int64_t, 4>;

constexpr int kModes = 3;
// Up to this dimension eigenvectors cost next to nothing: always all of them, in float64.
constexpr int64_t kSmall = 256;
// From this many elements on their Gram matrices are no longer summed in float64 alone.
constexpr int64_t kMany = int64_t{1} << 20;
// Below this squared relative error float32 Gram matrices and differences of norms are too coarse.
constexpr double kPreciseBelow = 1e-3;
// Refinement of a mode's vectors: at most so many steps, until one lowers the squared error by less than a
// part of it; beyond that all eigenvectors are the shorter way, the sooner the smaller the dimension.
struct Effort {
    int steps = 0;
    double near = 0;
};
constexpr int64_t kLarge = 1024;
constexpr Effort kEffort{1, 4e-5}, kEffortLarge{6, 4e-6};
// Eigenvalues so many times the least that is kept are strong.
constexpr double kStrong = 8;
constexpr int kHeadSteps = 1;

int64_t product(std::span<const int64_t> dims) {
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

// A tensor in its own memory or another's.
struct Part {
    Dims dims{};
    const float* data = nullptr;
    std::unique_ptr<float[]> own = nullptr;

    Part view() const { return {dims, data}; }
    int64_t size() const { return product(dims); }
    // As [before, dims[mode], after].
    int64_t before(int mode) const { return product(std::span(dims).first(mode)); }
    int64_t after(int mode) const { return product(std::span(dims).subspan(mode + 1)); }
};

// x with index `mode` summed against the columns of `factor` (transposed) or its rows (plain).
Part contract(const Part& x, int mode, Op op, const float* factor, int64_t to) {
    const int64_t from = x.dims[mode], a = x.before(mode), c = x.after(mode);
    Part y{x.dims, nullptr};
    y.dims[mode] = to;
    y.own = std::make_unique_for_overwrite<float[]>(y.size());
    y.data = y.own.get();
    if (a == 1) {
        blas::multiply(op, Op::plain, {to, c, from}, factor, x.data, y.own.get());
        return y;
    }
    const Op right = op == Op::transposed ? Op::plain : Op::transposed;
    for (int64_t k = 0; k < c; ++k) {
        blas::multiply(Op::plain, right, {a, to, from}, x.data + k * a * from, factor,
                       y.own.get() + k * a * to);
    }
    return y;
}

// The unfolding of x (n rows) times the transposed one of y: n x y.dims[mode].
std::vector<float> cross(const Part& x, const Part& y, int mode) {
    const int64_t n = x.dims[mode], r = y.dims[mode], a = x.before(mode), c = x.after(mode);
    std::vector<float> out(n * r);
    if (a == 1) {
        blas::multiply(Op::plain, Op::transposed, {n, r, c}, x.data, y.data, out.data());
        return out;
    }
    for (int64_t k = 0; k < c; ++k) {
        blas::multiply(Op::transposed, Op::plain, {n, r, a}, x.data + k * a * n, y.data + k * a * r,
                       out.data(), 1);
    }
    return out;
}

double energy(const Part& x) { return blas::energy({x.data, static_cast<size_t>(x.size())}, "a product"); }

template <typename Real>
std::vector<Real> mode_gram(const Part& x, int mode) {
    return blas::gram<Real>(x.data, x.before(mode), x.dims[mode], x.after(mode));
}

std::vector<double> mixed_mode_gram(const Part& x, int mode) {
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

// core x1 U1 x2 U2 x3 U3, identities left out.
Part expand(Part core, const TuckerResult& result, const Dims& dims) {
    for (int m = kModes - 1; m >= 0; --m) {
        if (result.ranks[m] == dims[m]) continue;
        core = contract(core, m, Op::plain, result.factors[m].data(), dims[m]);
    }
    return core;
}

// The energy of a Gram matrix within its factor, before (where it is asked for) and after the factor's
// update.
struct Update {
    double before = 0, after = 0;
};

class Hooi {
public:
    Hooi(std::span<const float> tensor, const Dims& dims, const TuckerOptions& options, double total)
        : tensor_{dims, tensor.data()}, options_(options), total_(total) {
        for (int m = 0; m < kModes; ++m) {
            result_.ranks[m] = std::min(options.ranks[m], dims[m]);
            full_[m] = result_.ranks[m] == dims[m];
        }
        // The squares must neither overflow nor vanish in float32.
        precise_ = total > 1e30 || total < 1e-24;
    }

    TuckerResult run() {
        start();
        if (total_ > 0 && std::ranges::count(full_, false) > 0) iterate();
        const Part core = project(kModes);
        result_.core.assign(core.data, core.data + core.size());
        return std::move(result_);
    }

private:
    int64_t rank(int m) const { return result_.ranks[m]; }
    // The first mode that is reduced.
    int first_mode() const { return static_cast<int>(std::ranges::find(full_, false) - full_.begin()); }
    std::vector<float>& factor(int m) { return result_.factors[m]; }
    bool in_double(int m) const { return precise_ || tensor_.dims[m] <= kSmall; }

    // HOSVD: every mode from the tensor itself.
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
                const Update energy = update(m, sweep);
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

    // |tensor - its reconstruction| / |tensor|, one slice of mode 4 at a time.
    double residual() {
        Part core = project(kModes);
        const int64_t slices = core.dims[3], from = core.size() / slices, to = tensor_.size() / slices;
        core.dims[3] = 1;
        Dims dims = tensor_.dims;
        dims[3] = 1;
        double sum = 0;
        for (int64_t i = 0; i < slices; ++i) {
            const Part slice = expand({core.dims, core.data + i * from}, result_, dims);
            for (int64_t k = 0; k < to; ++k) {
                const double difference = static_cast<double>(slice.data[k]) - tensor_.data[i * to + k];
                sum += difference * difference;
            }
        }
        return std::sqrt(sum / total_);
    }

    // The tensor contracted with every factor but that of mode `skip`. Only mode 1's is expensive, and the
    // same for all others.
    Part project(int skip) {
        Part x = tensor_.view();
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

    // Keeps the first `head` vectors of the factor; the others become leading eigenvectors.
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

    // Float32 Gram matrices lose the weak eigenvectors in the rounding of the strong ones, which are
    // therefore found by power iteration on the tensor itself, and taken out of it. Returns what is left.
    Part take_head(int m, const Part& x, double& kept) {
        const int64_t n = tensor_.dims[m], head = heads_[m];
        kept = 0;
        if (head == 0) return x.view();
        std::vector<float> w(factor(m).begin(), factor(m).begin() + n * head);
        Part inside;
        for (int i = 0; i <= kHeadSteps; ++i) {
            inside = contract(x, m, Op::transposed, w.data(), head);
            if (i == kHeadSteps) break;
            w = cross(x, inside, m);
            blas::householder(n, head, w.data());
        }
        kept = energy(inside);
        Part rest = contract(inside, m, Op::plain, w.data(), n);
        for (int64_t i = 0; i < rest.size(); ++i) rest.own[i] = x.data[i] - rest.own[i];
        std::ranges::copy(w, factor(m).begin());
        return rest;
    }

    std::vector<double> small_gram(const Part& x, int m) const {
        return precise_ || m == 0 || tensor_.size() < kMany ? mode_gram<double>(x, m) : mixed_mode_gram(x, m);
    }

    Update update(int m, int sweep) {
        const Part x = project(m);
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

    // The old factor (without its head, as the matrix) is near the leading eigenvectors: block power
    // iteration on G - c with the factor's own part taken out, U + (G U - U H) (H - c)^-1 for H = U' G U,
    // which keeps the columns well conditioned. c is the middle of the other eigenvalues' range.
    double refine(int m, std::vector<float> gram, int sweep, double kept) {
        const int64_t n = tensor_.dims[m], head = heads_[m], r = rank(m) - head;
        // The first sweep comes from HOSVD's vectors, or from none, and has far to go.
        if (sweep == 1) return take_all(m, std::move(gram), head);
        const Effort effort = n < kLarge ? kEffort : kEffortLarge;
        const auto shift = static_cast<float>(next_[m] / 2);
        std::vector<float> u(factor(m).begin() + n * head, factor(m).end());
        std::vector<float> image(n * r), h(r * r), step;
        for (int i = 0; i < effort.steps; ++i) {
            blas::multiply_symmetric(n, r, gram.data(), u.data(), image.data());
            blas::multiply(Op::transposed, Op::plain, {r, r, n}, u.data(), image.data(), h.data());
            const double before = trace(h, r);
            blas::multiply(Op::plain, Op::plain, {n, r, r}, u.data(), h.data(), image.data(), 1, -1);
            for (int64_t k = 0; k < r; ++k) h[k * (r + 1)] -= shift;
            step = image;
            if (!blas::solve_right(n, r, h.data(), step.data())) break;
            const double gain = dot<float>(step, image), after = before + gain;
            const bool near = gain < effort.near * (total_ - kept - after);
            if (!near && i + 1 == effort.steps) break;
            for (size_t k = 0; k < step.size(); ++k) step[k] += u[k];
            if (!blas::orthonormalise(n, r, step.data())) break;
            std::swap(u, step);
            if (near) {
                std::vector<float> whole(factor(m).begin(), factor(m).begin() + n * head);
                whole.insert(whole.end(), u.begin(), u.end());
                if (!blas::orthonormalise(n, rank(m), whole.data())) break;
                factor(m) = std::move(whole);
                return after;
            }
        }
        return take_all(m, std::move(gram), head);
    }

    double take_all(int m, std::vector<float> gram, int64_t head) {
        const double after = take(m, std::move(gram), head);
        if (!blas::orthonormalise(tensor_.dims[m], rank(m), factor(m).data()))
            fail(ErrorCode::internal, "linalg", "eigenvectors of mode {} are dependent", m + 1);
        return after;
    }

    Part tensor_;
    const TuckerOptions& options_;
    double total_;
    bool precise_;
    std::array<bool, kModes> full_{};
    std::array<int64_t, kModes> heads_{};  // strong eigenvectors
    std::array<double, kModes> next_{};    // the largest eigenvalue left out
    TuckerResult result_;
    Part contracted_;  // with mode 1's factor, until that changes
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
    const Part whole = expand({core, result.core.data()}, result, dims);
    return {whole.data, whole.data + whole.size()};
}

}  // namespace refold
