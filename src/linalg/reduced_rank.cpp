#include "linalg/reduced_rank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "linalg/blas.h"
#include "linalg/device.h"

namespace refold {
namespace {

// A row-major [m x n] matrix is BLAS's column-major n x m one.
using blas::Op;
using Doubles = std::vector<double>;

struct Problem {
    int64_t inputs, outputs;
    Doubles w;  // inputs x outputs, column major
    std::span<const double> gram;
    blas::Kept kept_w, kept_gram;

    Problem(std::span<const double> of_inputs, int64_t n, std::span<const float> weights)
        : inputs(n),
          outputs(static_cast<int64_t>(weights.size()) / n),
          w(weights.begin(), weights.end()),
          gram(of_inputs),
          kept_w(std::span<const double>(w)),
          kept_gram(gram) {}

    // gram W^T: inputs x outputs.
    Doubles weighted() const {
        Doubles out(w.size());
        blas::multiply(Op::plain, Op::plain, {inputs, outputs, inputs}, gram.data(), w.data(), out.data());
        return out;
    }
};

// W gram W^T: outputs x outputs, whose eigenvectors are the left singular vectors of W S.
Doubles of_outputs(const Problem& p) {
    const Doubles weighted = p.weighted();
    Doubles out(static_cast<size_t>(p.outputs * p.outputs));
    blas::multiply(Op::transposed, Op::plain, {p.outputs, p.outputs, p.inputs}, p.w.data(), weighted.data(),
                   out.data());
    return out;
}

// Lower triangular S. Where the inputs leave directions out, these get as little as makes it regular.
Doubles root_of(std::span<const double> gram, int64_t n) {
    const auto width = static_cast<size_t>(n);
    double mean = 0;
    for (size_t i = 0; i < width; ++i) mean += gram[i * (width + 1)] / static_cast<double>(n);
    for (double ridge = 1e-10; ridge < 1 && std::isfinite(mean); ridge *= 10) {
        Doubles s(gram.begin(), gram.end());
        for (size_t i = 0; i < width; ++i) s[i * (width + 1)] += ridge * (mean > 0 ? mean : 1);
        if (!blas::cholesky(n, s.data())) continue;
        for (size_t column = 1; column < width; ++column)
            std::fill_n(s.begin() + static_cast<int64_t>(column * width), column, 0.0);
        return s;
    }
    fail(ErrorCode::input, "reduced rank", "the Gram matrix of {} inputs is not positive", n);
}

// S^T W^T: inputs x outputs.
Doubles whitened(const Problem& p) {
    const Doubles s = root_of(p.gram, p.inputs);
    Doubles out(p.w.size());
    blas::multiply(Op::transposed, Op::plain, {p.inputs, p.outputs, p.inputs}, s.data(), p.w.data(),
                   out.data());
    return out;
}

// S^T W^T W S: inputs x inputs, whose eigenvectors are the right singular vectors of W S.
Doubles of_inputs(const Problem& p, const Doubles& whitened) {
    Doubles out(static_cast<size_t>(p.inputs * p.inputs));
    blas::multiply(Op::plain, Op::transposed, {p.inputs, p.inputs, p.outputs}, whitened.data(),
                   whitened.data(), out.data());
    return out;
}

// The leading left singular vectors of W S: outputs x rank. From the smaller side.
Doubles left_vectors(const Problem& p, int64_t rank) {
    if (p.outputs <= p.inputs) return blas::leading_eigenvectors(of_outputs(p), p.outputs, rank).vectors;
    const Doubles rows = whitened(p);
    const auto right = blas::leading_eigenvectors(of_inputs(p, rows), p.inputs, rank);
    Doubles out(static_cast<size_t>(p.outputs * rank));
    blas::multiply(Op::transposed, Op::plain, {p.outputs, rank, p.inputs}, rows.data(), right.vectors.data(),
                   out.data());
    blas::householder(p.outputs, rank, out.data());  // also where singular values are too small to divide by
    return out;
}

}  // namespace

LowRankMap reduce_rank(std::span<const double> gram, int64_t inputs, std::span<const float> weights,
                       int64_t rank) {
    const Problem p(gram, inputs, weights);
    rank = std::min({rank, p.inputs, p.outputs});
    const Doubles u = left_vectors(p, rank);
    Doubles v(static_cast<size_t>(rank * inputs));
    blas::multiply(Op::plain, Op::plain, {inputs, rank, p.outputs}, p.w.data(), u.data(), v.data());
    LowRankMap map;
    map.v.assign(v.begin(), v.end());
    for (int64_t o = 0; o < p.outputs; ++o) {
        for (int64_t r = 0; r < rank; ++r)
            map.u.push_back(static_cast<float>(u[static_cast<size_t>(r * p.outputs + o)]));
    }
    return map;
}

std::vector<double> output_energies(std::span<const double> gram, int64_t inputs,
                                    std::span<const float> weights) {
    const Problem p(gram, inputs, weights);
    const bool wide = p.outputs <= p.inputs;
    auto eigen = wide ? blas::leading_eigenvectors(of_outputs(p), p.outputs, 0)
                      : blas::leading_eigenvectors(of_inputs(p, whitened(p)), p.inputs, 0);
    for (double& value : eigen.values) value = std::max(0.0, value);
    return std::move(eigen.values);
}

double output_energy(std::span<const double> gram, int64_t inputs, std::span<const float> weights) {
    const Problem p(gram, inputs, weights);
    const Doubles weighted = p.weighted();
    return std::max(0.0, std::inner_product(weighted.begin(), weighted.end(), p.w.begin(), 0.0));
}

std::vector<float> factor_for(std::span<const double> gram, int64_t inputs, std::span<const float> weights,
                              std::span<const float> v) {
    const Problem p(gram, inputs, weights);
    const int64_t rank = static_cast<int64_t>(v.size()) / inputs;
    const auto n = static_cast<size_t>(rank);
    const Doubles into(v.begin(), v.end());  // inputs x rank, column major
    Doubles seen(into.size()), normal(n * n), u(n * static_cast<size_t>(p.outputs));
    blas::multiply(Op::plain, Op::plain, {inputs, rank, inputs}, gram.data(), into.data(), seen.data());
    blas::multiply(Op::transposed, Op::plain, {rank, rank, inputs}, into.data(), seen.data(), normal.data());
    blas::multiply(Op::transposed, Op::plain, {rank, p.outputs, inputs}, seen.data(), p.w.data(), u.data());
    // The rows of V have outputs of very different sizes: each is scaled to one.
    Doubles scale(n, 1);
    for (size_t r = 0; r < n; ++r) {
        if (const double square = normal[r * (n + 1)]; square > 0) scale[r] = 1 / std::sqrt(square);
    }
    const auto scaled = [&](Doubles& matrix) {
        for (size_t i = 0; i < matrix.size(); ++i) matrix[i] *= scale[i % n];
    };
    scaled(normal);
    for (size_t i = 0; i < normal.size(); ++i) normal[i] *= scale[i / n];
    scaled(u);
    // Outputs of a LayerNorm without bias depend on each other: a larger term on the diagonal decides then.
    const Doubles aims = u;
    bool solved = false;
    for (const double ridge : {1e-9, 1e-7, 1e-5}) {
        Doubles raised = normal;
        for (size_t r = 0; r < n; ++r) raised[r * (n + 1)] += ridge;
        u = aims;
        if ((solved = blas::solve_positive(rank, p.outputs, raised.data(), u.data()))) break;
    }
    if (!solved)
        fail(ErrorCode::input, "reduced rank", "{} features of {} inputs depend on each other", rank, inputs);
    scaled(u);
    return {u.begin(), u.end()};
}

std::vector<float> product_of(const LowRankMap& map, int64_t inputs) {
    const int64_t rank = static_cast<int64_t>(map.v.size()) / inputs,
                  outputs = static_cast<int64_t>(map.u.size()) / rank;
    std::vector<float> out(static_cast<size_t>(outputs * inputs));
    blas::multiply(Op::plain, Op::plain, {inputs, outputs, rank}, map.v.data(), map.u.data(), out.data());
    return out;
}

}  // namespace refold
