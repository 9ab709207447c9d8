#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/interrupt.h"
#include "linalg/blas.h"
#include "linalg/device.h"
#include "linalg/tucker.h"

namespace refold {
namespace {

using blas::Op;
using Dims = std::array<int64_t, 3>;

constexpr double kSingular = 1e-9;     // smaller eigenvalues of the normal equations, relative, are dropped
constexpr double kDirectBelow = 1e-3;  // smaller squared errors are not computed as a difference of norms

class Als {
public:
    Als(std::span<const float> tensor, const Dims& dims, const CpOptions& options, double total)
        : tensor_(tensor), kept_(tensor), dims_(dims), options_(options), rank_(options.rank), total_(total) {
        result_.rank = rank_;
        result_.weights.resize(rank_);
    }

    CpResult run() {
        start();
        if (total_ == 0) {
            std::ranges::fill(result_.weights, 0);
            return std::move(result_);
        }
        double previous = 0;
        for (int sweep = 1; sweep <= options_.max_sweeps; ++sweep) {
            check_interrupt();
            double kept = 0;
            for (int m = 0; m < 3; ++m) kept = update(m);
            result_.sweeps = sweep;
            result_.relative_error = error(kept);
            if (sweep > 2 && std::abs(previous - result_.relative_error) < options_.tolerance) break;
            previous = result_.relative_error;
        }
        return std::move(result_);
    }

private:
    void start() {
        blas::Normal normal(options_.seed);
        for (int m = 0; m < 3; ++m) {
            const int64_t n = dims_[m], leading = std::min(rank_, n);
            const int64_t a = m == 0 ? 1 : m == 1 ? dims_[0] : dims_[0] * dims_[1];
            const int64_t c = static_cast<int64_t>(tensor_.size()) / (a * n);
            const auto eigen =
                blas::leading_eigenvectors(blas::gram<double>(tensor_.data(), a, n, c), n, leading);
            auto& factor = result_.factors[m];
            factor.assign(eigen.vectors.begin(), eigen.vectors.end());
            factor.resize(n * rank_);
            for (int64_t i = n * leading; i < n * rank_; ++i) factor[i] = static_cast<float>(normal());
            normalize(m);
        }
    }

    // Moves the vectors' norms into the weights.
    void normalize(int m) {
        const int64_t n = dims_[m];
        for (int64_t r = 0; r < rank_; ++r) {
            const std::span column(result_.factors[m].data() + r * n, n);
            const double norm = std::sqrt(blas::energy(column, "a factor"));
            result_.weights[r] = norm;
            if (norm == 0) {
                column[0] = 1;
                continue;
            }
            for (float& x : column) x = static_cast<float>(x / norm);
        }
    }

    // The Khatri-Rao product of the factors of modes `fast` and `slow`.
    std::vector<float> pairs(int fast, int slow) const {
        const int64_t n = dims_[fast], k = dims_[slow];
        std::vector<float> out(n * k * rank_);
        float* to = out.data();
        for (int64_t r = 0; r < rank_; ++r) {
            const float* column = result_.factors[fast].data() + r * n;
            for (int64_t i = 0; i < k; ++i, to += n) {
                const float weight = result_.factors[slow][r * k + i];
                for (int64_t j = 0; j < n; ++j) to[j] = column[j] * weight;
            }
        }
        return out;
    }

    // The tensor contracted with the vectors of the other modes, dims[m] x rank.
    std::vector<float> project(int m) const {
        const auto [n1, n2, n3] = dims_;
        std::vector<float> out(dims_[m] * rank_);
        if (m == 0) {
            const std::vector<float> others = pairs(1, 2);
            blas::multiply(Op::plain, Op::plain, {n1, rank_, n2 * n3}, tensor_.data(), others.data(),
                           out.data());
        } else if (m == 2) {
            const std::vector<float> others = pairs(0, 1);
            blas::multiply(Op::transposed, Op::plain, {n3, rank_, n1 * n2}, tensor_.data(), others.data(),
                           out.data());
        } else {
            std::vector<float> weighted(n1 * rank_);
            for (int64_t k = 0; k < n3; ++k) {
                for (int64_t r = 0; r < rank_; ++r) {
                    const float weight = result_.factors[2][r * n3 + k];
                    for (int64_t i = 0; i < n1; ++i)
                        weighted[r * n1 + i] = result_.factors[0][r * n1 + i] * weight;
                }
                blas::multiply(Op::transposed, Op::plain, {n2, rank_, n1}, tensor_.data() + k * n1 * n2,
                               weighted.data(), out.data(), 1);
            }
        }
        return out;
    }

    // Inner products of the rank-one terms over all modes but `skip`.
    std::vector<double> products(int skip) const {
        std::vector<double> out(rank_ * rank_, 1);
        for (int m = 0; m < 3; ++m) {
            if (m == skip) continue;
            const auto& factor = result_.factors[m];
            const std::vector<double> x(factor.begin(), factor.end());
            std::vector<double> gram(rank_ * rank_);
            blas::multiply(Op::transposed, Op::plain, {rank_, rank_, dims_[m]}, x.data(), x.data(),
                           gram.data());
            for (size_t i = 0; i < out.size(); ++i) out[i] *= gram[i];
        }
        return out;
    }

    // Solves least squares for one mode by the pseudo-inverse of its normal equations. Returns the part of
    // the tensor's energy that the model explains.
    double update(int m) {
        const int64_t n = dims_[m];
        const std::vector<float> right = project(m);
        const std::vector<double> normal = products(m), target(right.begin(), right.end());
        const auto eigen = blas::leading_eigenvectors(normal, rank_, rank_);
        const std::vector<double>& q = eigen.vectors;
        std::vector<double> within(n * rank_), factor(n * rank_);
        blas::multiply(Op::plain, Op::plain, {n, rank_, rank_}, target.data(), q.data(), within.data());
        for (int64_t r = 0; r < rank_; ++r) {
            const double value = eigen.values[r];
            const double inverse = value > kSingular * eigen.values[0] ? 1 / value : 0;
            for (int64_t i = 0; i < n; ++i) within[r * n + i] *= inverse;
        }
        blas::multiply(Op::plain, Op::transposed, {n, rank_, rank_}, within.data(), q.data(), factor.data());
        std::vector<double> image(n * rank_);
        blas::multiply(Op::plain, Op::plain, {n, rank_, rank_}, factor.data(), normal.data(), image.data());
        const double cross = std::inner_product(factor.begin(), factor.end(), target.begin(), 0.0);
        const double own = std::inner_product(factor.begin(), factor.end(), image.begin(), 0.0);
        result_.factors[m].assign(factor.begin(), factor.end());
        normalize(m);
        return 2 * cross - own;
    }

    double error(double kept) const {
        const double square = 1 - kept / total_;
        if (square >= kDirectBelow) return std::sqrt(square);
        const std::vector<float> model = reconstruct(result_, dims_);
        double sum = 0;
        for (size_t i = 0; i < model.size(); ++i) {
            const double difference = static_cast<double>(model[i]) - tensor_[i];
            sum += difference * difference;
        }
        return std::sqrt(sum / total_);
    }

    std::span<const float> tensor_;
    blas::Kept kept_;
    const Dims& dims_;
    const CpOptions& options_;
    int64_t rank_;
    double total_;
    CpResult result_;
};

}  // namespace

CpResult cp_decomposition(std::span<const float> tensor, const Dims& dims, const CpOptions& options) {
    blas::check_size(dims, tensor.size(), "the tensor");
    if (options.rank < 1) fail(ErrorCode::usage, "linalg", "a rank of {}, expected at least 1", options.rank);
    if (options.max_sweeps < 1) {
        fail(ErrorCode::usage, "linalg", "{} sweeps, expected at least 1", options.max_sweeps);
    }
    const double total = blas::energy(tensor, "the tensor");
    return Als(tensor, dims, options, total).run();
}

std::vector<float> reconstruct(const CpResult& result, const Dims& dims) {
    const auto [n1, n2, n3] = dims;
    for (int m = 0; m < 3; ++m) {
        const std::array size = {dims[m], result.rank};
        blas::check_size(size, result.factors[m].size(), "a factor");
    }
    std::vector<float> out(n1 * n2 * n3), weighted(n1 * result.rank);
    for (int64_t k = 0; k < n3; ++k) {
        for (int64_t r = 0; r < result.rank; ++r) {
            const auto weight = static_cast<float>(result.weights[r] * result.factors[2][r * n3 + k]);
            for (int64_t i = 0; i < n1; ++i) weighted[r * n1 + i] = result.factors[0][r * n1 + i] * weight;
        }
        blas::multiply(Op::plain, Op::transposed, {n1, n2, result.rank}, weighted.data(),
                       result.factors[1].data(), out.data() + k * n1 * n2);
    }
    return out;
}

}  // namespace refold
