// Sums of products of rows, in the memory of the device (device.h) while rows are added, where that is worth
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linalg/device.h"

namespace refold {

// Sums over rows (x, y) of x x^T and y x^T, in float64.
class ProductSums {
public:
    ProductSums(int64_t inputs, int64_t outputs);
    ProductSums(const ProductSums& other);
    ProductSums& operator=(const ProductSums& other);
    ProductSums(ProductSums&&) = default;
    ProductSums& operator=(ProductSums&&) = default;
    ~ProductSums() = default;

    // Rows x [rows x inputs] and y [rows x outputs], both row major. Throws Error(input) when a sum is not
    // finite.
    void add(int64_t rows, const float* x, const float* y);

    // Both triangles [inputs x inputs], and [outputs x inputs]. The first call after add() fetches them from
    // the device, so it must not meet another one.
    std::vector<double>& gram() { return fetched().gram; }
    std::vector<double>& cross() { return fetched().cross; }
    const std::vector<double>& gram() const { return fetched().gram; }
    const std::vector<double>& cross() const { return fetched().cross; }

private:
    struct Sums {
        std::vector<double> gram, cross;
    };
    Sums& fetched() const;
    bool add_here(int64_t rows, const float* x, const float* y);

    int64_t inputs_, outputs_;
    mutable Sums sums_;
    mutable std::unique_ptr<blas::DeviceSums> there_;  // what has been added since the last fetch
};

}  // namespace refold
