// Products of Q8_0 weights: a node of our own where the CPU has bytes' products (AVX-512 VNNI). The same
// integers as in ggml's product.
#pragma once

#include <atomic>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/meeting.h"
#include "engine/ggml/q8_kernels.h"

namespace refold {

// One object serves all nodes of a graph, which run one after the other.
class Q8Product {
public:
    static bool available();
    // Of rows as they are stored: a few tokens do not pay for laying them out in panels in every step.
    static bool pays(const ggml_tensor* weight, const ggml_tensor* x);

    explicit Q8Product(int threads) : threads_(static_cast<size_t>(threads)) {}
    Q8Product(const Q8Product&) = delete;
    Q8Product& operator=(const Q8Product&) = delete;

    // F32 [rows of weight, tokens]; x F32 [columns of weight, tokens], whose tokens are contiguous. The
    // weight's data are rows of Q8_0, or panels of them (q8::pack_panel), one behind the other, of which
    // there is a whole number.
    ggml_tensor* of_rows(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);
    ggml_tensor* of_panels(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);
    uint64_t bytes() const { return inputs_.bytes(); }

private:
    struct Thread {
        std::vector<std::byte> panel;
        q8::QuantisedTokens few;  // of a node of few tokens, which every thread quantises for itself
    };

    static void compute_rows(ggml_tensor* dst, int thread, int threads, void* product);
    static void compute_panels(ggml_tensor* dst, int thread, int threads, void* product);
    // Quantises x and calls multiply(first row of the weight, rows, tokens) for this thread's panels.
    template <class Multiply>
    void compute(ggml_tensor* dst, int thread, int threads, const Multiply& multiply);

    std::vector<Thread> threads_;
    q8::QuantisedTokens inputs_;  // of the node's tokens
    Meeting meeting_;
    std::atomic<int64_t> next_{0};
};

}  // namespace refold
