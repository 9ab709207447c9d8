// Products of Q8_0 weights as custom ggml nodes, where the CPU has AVX-512 VNNI. Integer sums are those of
// ggml's product.
#pragma once

#include <atomic>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/q8_kernels.h"
#include "engine/ggml/spin_barrier.h"

namespace refold {

// One object serves all nodes of a graph, which run one after the other.
class Q8Product {
public:
    static bool available();
    // Whether of_rows() is faster than ggml: few tokens do not pay for packing panels in every step.
    static bool pays(const ggml_tensor* weight, const ggml_tensor* x);

    explicit Q8Product(int threads) : threads_(static_cast<size_t>(threads)) {}
    Q8Product(const Q8Product&) = delete;
    Q8Product& operator=(const Q8Product&) = delete;

    // weight * x: F32 [rows, tokens]; x F32 [columns, tokens], each token contiguous. The weight
    // [columns, rows] holds Q8_0 rows, or consecutive panels of them (q8::pack_panels), whole ones only.
    ggml_tensor* of_rows(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);
    ggml_tensor* of_panels(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);
    uint64_t bytes() const { return inputs_.bytes(); }

private:
    struct ThreadScratch {
        std::vector<std::byte> panel;
        q8::QuantizedTokens few;  // all tokens of a node with few: every thread quantizes them itself
    };

    static void compute_rows(ggml_tensor* dst, int thread, int threads, void* product);
    static void compute_panels(ggml_tensor* dst, int thread, int threads, void* product);
    // Quantizes x and calls multiply(first row, number of rows, tokens) for each panel of this thread.
    template <class Multiply>
    void compute(ggml_tensor* dst, int thread, int threads, const Multiply& multiply);

    std::vector<ThreadScratch> threads_;
    q8::QuantizedTokens inputs_;  // the tokens of a node, shared by all threads
    SpinBarrier barrier_;
    std::atomic<int64_t> next_{0};
};

}  // namespace refold
