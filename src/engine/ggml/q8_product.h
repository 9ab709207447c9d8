// Products of Q8_0 weights, as they are stored, with many tokens: a node of our own where the CPU has bytes'
// products (AVX-512 VNNI). The same integers as ggml's product, which is a third as fast.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/meeting.h"

namespace refold {

// One object serves all nodes of a graph, which run one after the other.
class Q8Product {
public:
    // Fewer tokens do not pay for the weights' being laid out anew for every step.
    static constexpr int64_t kLeastTokens = 8;
    static bool available();

    explicit Q8Product(int threads) : panels_(static_cast<size_t>(threads)) {}
    Q8Product(const Q8Product&) = delete;
    Q8Product& operator=(const Q8Product&) = delete;

    // F32 [rows of weight, tokens]; x F32 [columns of weight, tokens], whose tokens are contiguous.
    ggml_tensor* node(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);

private:
    static void compute(ggml_tensor* dst, int thread, int threads, void* product);
    void quantise(const ggml_tensor* x, int thread, int threads);
    void multiply(ggml_tensor* dst, int thread, int threads);

    struct Delete {
        void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t{64}); }
    };
    struct Panel {
        std::unique_ptr<std::byte, Delete> data;
        size_t bytes = 0;
        std::vector<std::byte> row;  // of activations, as ggml quantises it
    };
    std::byte* panel(int thread, size_t bytes);

    std::vector<Panel> panels_;  // by thread
    // Of the node's tokens: see q8::Tokens.
    std::vector<int8_t> quants_;
    std::vector<float> scales_;
    std::vector<int32_t> offsets_;
    Meeting meeting_;
    std::atomic<int64_t> next_{0};
};

}  // namespace refold
