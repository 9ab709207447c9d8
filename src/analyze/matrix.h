// Similarities of all pairs of layers, heads or modules.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace refold {

// The value of a statistic without measurements; null in JSON.
constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// Square, row major.
class SquareMatrix {
public:
    explicit SquareMatrix(size_t size = 0, double value = kUndefined)
        : size_(size), values_(size * size, value) {}

    size_t size() const { return size_; }
    double& operator()(size_t row, size_t column) { return values_[row * size_ + column]; }
    double operator()(size_t row, size_t column) const { return values_[row * size_ + column]; }
    std::span<double> values() { return values_; }
    std::span<const double> row(size_t row) const { return std::span(values_).subspan(row * size_, size_); }

private:
    size_t size_;
    std::vector<double> values_;
};

// The matrix with element (i, j) = given(of[i], of[j]); row and column i are undefined when of[i] is nothing.
SquareMatrix expanded(const SquareMatrix& given, std::span<const std::optional<size_t>> of);

// Cosines from the lower triangle of a row-major n x n matrix of dot products; undefined where a norm is 0.
SquareMatrix cosines_of(std::span<const double> gram, size_t n);

struct Best {
    size_t index = 0;
    double cosine = 0;
};
// For every row, the best match among the rows of earlier layers: the largest defined cosine, the first one
// on ties, or nothing. layer[i] is the layer of row i, in ascending order.
std::vector<std::optional<Best>> best_of_earlier(const SquareMatrix& cosines, std::span<const size_t> layer);

}  // namespace refold
