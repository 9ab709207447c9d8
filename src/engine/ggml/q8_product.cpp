#include "engine/ggml/q8_product.h"

#include <algorithm>

#include "engine/ggml/parts.h"
#include "engine/ggml/q8_kernels.h"

namespace refold {

bool Q8Product::available() { return q8::available(); }

ggml_tensor* Q8Product::node(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
    ggml_tensor* arguments[] = {weight, x};
    return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, arguments, 2, compute,
                          GGML_N_TASKS_MAX, this);
}

std::byte* Q8Product::panel(int thread, size_t bytes) {
    Panel& panel = panels_[static_cast<size_t>(thread)];
    if (panel.bytes < bytes) {
        panel.data.reset(new (std::align_val_t{64}) std::byte[bytes]);
        panel.bytes = bytes;
    }
    return panel.data.get();
}

void Q8Product::compute(ggml_tensor* dst, int thread, int threads, void* product) {
    auto& self = *static_cast<Q8Product*>(product);
    const ggml_tensor* x = dst->src[1];
    const auto numbers = static_cast<size_t>(x->ne[0] * x->ne[1]), blocks = numbers / q8::kBlock;
    const auto prepare = [&] {
        self.next_.store(0, std::memory_order_relaxed);
        if (self.quants_.size() >= numbers) return;
        self.quants_.resize(numbers);
        self.scales_.resize(blocks);
        self.offsets_.resize(blocks);
    };
    self.meeting_.wait(threads, prepare);
    self.quantise(x, thread, threads);
    self.meeting_.wait(threads, [] {});
    self.multiply(dst, thread);
}

void Q8Product::quantise(const ggml_tensor* x, int thread, int threads) {
    const int64_t blocks = x->ne[0] / q8::kBlock;
    const auto [first, last] = parts::share_of(x->ne[1], thread, threads);
    for (int64_t t = first; t < last; ++t) {
        const char* row = static_cast<const char*>(x->data) + static_cast<size_t>(t) * x->nb[1];
        q8::quantise(reinterpret_cast<const float*>(row), blocks, panels_[static_cast<size_t>(thread)].row,
                     quants_.data() + t * blocks * q8::kBlock, scales_.data() + t * blocks,
                     offsets_.data() + t * blocks);
    }
}

void Q8Product::multiply(ggml_tensor* dst, int thread) {
    const ggml_tensor* weight = dst->src[0];
    const int64_t blocks = weight->ne[0] / q8::kBlock, tokens = dst->ne[1],
                  panels = (weight->ne[1] + q8::kPanelRows - 1) / q8::kPanelRows;
    std::byte* packed = panel(thread, q8::panel_bytes(blocks));
    const q8::Tokens x{quants_.data(), scales_.data(), offsets_.data(), blocks};
    for (int64_t i = next_.fetch_add(1); i < panels; i = next_.fetch_add(1)) {
        const int64_t row = i * q8::kPanelRows, rows = std::min(q8::kPanelRows, weight->ne[1] - row);
        q8::pack_panel(static_cast<const std::byte*>(weight->data) + static_cast<size_t>(row) * weight->nb[1],
                       weight->nb[1], rows, blocks, packed);
        q8::multiply_panel(packed, x, 0, tokens,
                           {static_cast<float*>(dst->data) + row, dst->nb[1] / sizeof(float), rows});
    }
}

}  // namespace refold
