#include "analyze/statistics.h"

#include <cmath>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/group.h"
#include "linalg/blas.h"

namespace refold {

void RunningMean::add(double x) {
    ++count_;
    const double before = x - mean_;
    mean_ += before / static_cast<double>(count_);
    squares_ += before * (x - mean_);
}

double RunningMean::deviation() const {
    return count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : kUndefined;
}

void merge_over_processes(std::span<RunningMean* const> means) {
    std::string own;
    for (const RunningMean* mean : means) own.append(reinterpret_cast<const char*>(mean), sizeof *mean);
    const std::vector<std::string> all = group().gather(own);
    for (size_t i = 0; i < means.size(); ++i) {
        RunningMean sum;
        for (const std::string& bytes : all) {
            RunningMean other;
            std::memcpy(&other, bytes.data() + i * sizeof other, sizeof other);
            if (other.count_ == 0) continue;
            const auto count = static_cast<double>(sum.count_), others = static_cast<double>(other.count_);
            const double away = other.mean_ - sum.mean_;
            sum.count_ += other.count_;
            sum.mean_ += away * others / (count + others);
            sum.squares_ += other.squares_ + away * away * count * others / (count + others);
        }
        *means[i] = sum;
    }
}

namespace {

struct Products {
    double ab = 0, aa = 0, bb = 0;
    void add(double a, double b) {
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    double cosine() const { return aa > 0 && bb > 0 ? ab / (std::sqrt(aa) * std::sqrt(bb)) : kUndefined; }
};

// Adds the cosines of pairs of rows; `pair` gives the elements.
template <typename Pair>
void add_cosines(size_t elements, size_t width, RunningMean& mean, Pair pair) {
    for (size_t first = 0; first < elements; first += width) {
        Products row;
        for (size_t i = first; i < first + width; ++i) pair(row, i);
        if (const double value = row.cosine(); !std::isnan(value)) mean.add(value);
    }
}

}  // namespace

double cosine(std::span<const float> a, std::span<const float> b) {
    Products products;
    for (size_t i = 0; i < a.size(); ++i) products.add(a[i], b[i]);
    return products.cosine();
}

void add_row_cosines(std::span<const float> a, std::span<const float> b, size_t width, RunningMean& mean) {
    add_cosines(a.size(), width, mean, [&](Products& row, size_t i) { row.add(a[i], b[i]); });
}

void add_residual_cosines(std::span<const float> a, std::span<const float> f, size_t width,
                          RunningMean& mean) {
    add_cosines(a.size(), width, mean,
                [&](Products& row, size_t i) { row.add(a[i], static_cast<double>(a[i]) + f[i]); });
}

void DotProducts::add(std::span<const float> chunk) {
    if (n_ == 0 || chunk.size() % n_ != 0)
        fail(ErrorCode::input, "analyze", "{} numbers for {} vectors", chunk.size(), n_);
    const auto n = static_cast<int64_t>(n_), count = static_cast<int64_t>(chunk.size() / n_);
    if (count == 0) return;
    // Column major, lower triangle.
    const std::vector<double> products = blas::gram<double>(chunk.data(), count, n, 1);
    for (size_t row = 0; row < n_; ++row) {
        for (size_t column = 0; column <= row; ++column)
            sums_[row * n_ + column] += products[column * n_ + row];
    }
}

}  // namespace refold
