#include "linalg/product_sums.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/parallel.h"
#include "linalg/blas.h"
#include "linalg/blas_threads.h"

namespace refold {

// A row-major [m x n] matrix is BLAS's column-major n x m one.
using blas::Op;

// Sums this many rows in float32; adding such a sum in float64 costs as much as 250 rows.
static constexpr int64_t kRows = 1024;
// Threads share out tiles of so many inputs and outputs, which are the same for any number of threads.
static constexpr int64_t kTile = 192;

ProductSums::ProductSums(int64_t inputs, int64_t outputs)
    : inputs_(inputs),
      outputs_(outputs),
      sums_{std::vector<double>(static_cast<size_t>(inputs * inputs)),
            std::vector<double>(static_cast<size_t>(inputs * outputs))} {}

ProductSums::ProductSums(const ProductSums& other)
    : inputs_(other.inputs_), outputs_(other.outputs_), sums_(other.fetched()) {}

ProductSums& ProductSums::operator=(const ProductSums& other) {
    if (this != &other) *this = ProductSums(other);
    return *this;
}

void ProductSums::add(int64_t rows, const float* x, const float* y) {
    const double all = static_cast<double>(inputs_ + outputs_);
    for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        const float *xs = x + first * inputs_, *ys = outputs_ == 0 ? nullptr : y + first * outputs_;
        const double operations = 2 * static_cast<double>(count) * static_cast<double>(inputs_) * all;
        blas::Device* const on =
            blas::device_for(operations, static_cast<double>(count) * all * sizeof(float));
        if (on != nullptr && !there_) there_ = on->sums(inputs_, outputs_);
        if (!(there_ ? there_->add(count, xs, ys) : add_here(count, xs, ys)))
            fail(ErrorCode::input, "least squares", "activations, or sums of their products, are not finite");
    }
}

bool ProductSums::add_here(int64_t rows, const float* x, const float* y) {
    struct Tile {
        bool of_gram;
        int64_t input, other;  // the first of each
    };
    std::vector<Tile> tiles;
    for (int64_t i = 0; i < inputs_; i += kTile) {
        for (int64_t j = 0; j <= i; j += kTile) tiles.push_back({true, i, j});
        for (int64_t o = 0; o < outputs_; o += kTile) tiles.push_back({false, i, o});
    }
    std::atomic<bool> finite = true;
    blas::share_out(static_cast<int64_t>(tiles.size()), [&](int64_t t) {
        const auto [of_gram, input, other] = tiles[static_cast<size_t>(t)];
        const int64_t width = of_gram ? inputs_ : outputs_, m = std::min(kTile, inputs_ - input),
                      n = std::min(kTile, width - other);
        std::vector<float> products(static_cast<size_t>(m * n));
        blas::multiply_parts(Op::plain, Op::transposed, {m, n, rows}, {x + input, inputs_},
                             {(of_gram ? x : y) + other, width}, products.data());
        std::vector<double>& sums = of_gram ? sums_.gram : sums_.cross;
        bool all = true;
        for (int64_t j = 0; j < n; ++j) {
            for (int64_t i = 0; i < m; ++i) {
                double& sum = sums[static_cast<size_t>((other + j) * inputs_ + input + i)];
                sum += static_cast<double>(products[static_cast<size_t>(j * m + i)]);
                all &= std::isfinite(sum);
                if (of_gram && input != other)
                    sums[static_cast<size_t>((input + i) * inputs_ + other + j)] = sum;
            }
        }
        if (!all) finite = false;
    });
    return finite;
}

ProductSums::Sums& ProductSums::fetched() const {
    if (there_) {
        Sums added{std::vector<double>(sums_.gram.size()), std::vector<double>(sums_.cross.size())};
        there_->read(added.gram.data(), added.cross.data());
        there_.reset();
        for (size_t i = 0; i < added.gram.size(); ++i) sums_.gram[i] += added.gram[i];
        for (size_t i = 0; i < added.cross.size(); ++i) sums_.cross[i] += added.cross[i];
    }
    return sums_;
}

}  // namespace refold
