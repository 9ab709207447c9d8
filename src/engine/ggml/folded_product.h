// Products of folded weights (fold() in io/dtype.h) as custom ggml nodes, for CPUs without kernels for row
// panels (row_panels.h). Whatever the number of tokens, a result is the same.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/ggml/handles.h"

namespace refold {

// One object serves all nodes of a graph, which run one after the other.
class FoldedProduct {
public:
    explicit FoldedProduct(int threads) : threads_(static_cast<size_t>(threads)) {}
    FoldedProduct(const FoldedProduct&) = delete;
    FoldedProduct& operator=(const FoldedProduct&) = delete;

    // weight * x: F32 [rows, tokens]; x F32 [columns, tokens], each token contiguous. A row of the weight
    // [fold * columns, rows / fold] holds `fold` rows of the matrix.
    ggml_tensor* multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);

private:
    struct ThreadScratch {
        std::vector<float> floats;  // a shifted token
        std::vector<std::byte>
            inputs;  // [token][row of a stored row]: shifted tokens in the type of dot products
    };

    static void compute(ggml_tensor* dst, int thread, int threads, void* product);

    std::vector<ThreadScratch> threads_;
};

}  // namespace refold
