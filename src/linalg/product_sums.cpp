#include "linalg/product_sums.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "linalg/blas.h"

namespace refold {

// A row-major [m x n] matrix is BLAS's column-major n x m one.
using blas::Op;

// Sums this many rows in float32; adding such a sum in float64 costs as much as 250 rows.
static constexpr int64_t kRows = 1024;

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
    bool finite = true;
    const auto add = [&](int64_t n, const float* other, std::vector<double>& sums) {
        if (n == 0) return;
        std::vector<float> products(sums.size());
        blas::multiply(Op::plain, Op::transposed, {inputs_, n, rows}, x, other, products.data());
        for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] += static_cast<double>(products[i]);
            finite &= std::isfinite(sums[i]);
        }
    };
    add(inputs_, x, sums_.gram);
    add(outputs_, y, sums_.cross);
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
