// Streaming statistics of activations, in float64 and in memory that does not grow with the text. For Gram
// and cross-Gram matrices of the inputs and outputs of linear maps see linalg/least_squares.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analyze/matrix.h"

namespace refold {

// Mean and standard deviation of a stream of numbers (Welford 1962).
class RunningMean {
public:
    void add(double x);
    int64_t count() const { return count_; }
    // Undefined without numbers.
    double mean() const { return count_ > 0 ? mean_ : kUndefined; }
    // Sample standard deviation (n - 1); undefined for fewer than two numbers.
    double deviation() const;

private:
    friend void merge_over_processes(std::span<RunningMean* const> means);
    int64_t count_ = 0;
    double mean_ = 0, squares_ = 0;
};

// Combines the numbers of all processes of group(), in all of them (Chan et al. 1983).
void merge_over_processes(std::span<RunningMean* const> means);

// a . b / (|a| |b|); undefined where a norm is 0.
double cosine(std::span<const float> a, std::span<const float> b);

// Adds the cosine of every row of a [rows][width] with the same row of b, skipping undefined ones.
void add_row_cosines(std::span<const float> a, std::span<const float> b, size_t width, RunningMean& mean);
// The same for a and a + f.
void add_residual_cosines(std::span<const float> a, std::span<const float> f, size_t width,
                          RunningMean& mean);

// Dot products of n vectors whose elements arrive in chunks.
class DotProducts {
public:
    explicit DotProducts(size_t n) : n_(n), sums_(n * n, 0.0) {}

    size_t size() const { return n_; }
    // Adds the next elements of every vector: chunk [n][elements]. Throws Error(input) when its size is not a
    // multiple of n.
    void add(std::span<const float> chunk);
    double operator()(size_t i, size_t j) const { return i < j ? sums_[j * n_ + i] : sums_[i * n_ + j]; }
    // Lower triangle, row major n x n.
    std::span<const double> lower() const { return sums_; }
    void clear() { sums_.assign(n_ * n_, 0.0); }

private:
    size_t n_;
    std::vector<double> sums_;
};

}  // namespace refold
