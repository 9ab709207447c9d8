// Q8_0 weights times activations, from rows or from panels.
//
// In: weight Q8_0 [row][block], or panels of sixteen rows; x F32 [token][column]. Out: F32 [token][row].
//
// Threads: up to four tokens are quantized by every thread for itself, which is cheaper than a barrier, and
// panels are split evenly. Otherwise each thread quantizes a share of the tokens, all wait, and panels are
// taken from a common counter, a few neighbors at a time.
//
// Panels are the outer loop, all tokens meet a panel before the next one is read: weights stream from memory
// once. Consecutive panels let the kernel prefetch one while it multiplies the one before.
#include "engine/ggml/q8_product.h"

#include <algorithm>

#include "engine/ggml/thread_share.h"

namespace refold {
namespace {

constexpr int64_t kLeastTokensOfRows = 8;  // from here on packing rows into panels pays
// Up to here quantizing all tokens takes less time than a barrier.
constexpr int64_t kFewTokens = 4;

ggml_tensor* node(ggml_context* context, ggml_tensor* weight, ggml_tensor* x, ggml_custom_op_t compute,
                  Q8Product* product) {
    ggml_tensor* arguments[] = {weight, x};
    return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, arguments, 2, compute,
                          GGML_N_TASKS_MAX, product);
}

const std::byte* row_of(const ggml_tensor* weight, int64_t row) {
    return static_cast<const std::byte*>(weight->data) + static_cast<size_t>(row) * weight->nb[1];
}

}  // namespace

bool Q8Product::available() { return q8::available(); }

bool Q8Product::pays(const ggml_tensor* weight, const ggml_tensor* x) {
    return weight->type == GGML_TYPE_Q8_0 && x->ne[1] >= kLeastTokensOfRows && available();
}

ggml_tensor* Q8Product::of_rows(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
    return node(context, weight, x, compute_rows, this);
}

ggml_tensor* Q8Product::of_panels(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
    return node(context, weight, x, compute_panels, this);
}

template <class Multiply>
void Q8Product::compute(ggml_tensor* dst, int thread, int threads, const Multiply& multiply) {
    const ggml_tensor *weight = dst->src[0], *x = dst->src[1];
    const int64_t blocks = weight->ne[0] / q8::kBlock, tokens = x->ne[1],
                  panels = (weight->ne[1] + q8::kPanelRows - 1) / q8::kPanelRows;
    ThreadScratch& own = threads_[static_cast<size_t>(thread)];
    const auto* floats = static_cast<const float*>(x->data);
    const auto stride = static_cast<int64_t>(x->nb[1] / sizeof(float));
    const auto multiply_panel = [&](int64_t panel, const q8::QuantizedTokens& inputs) {
        const int64_t row = panel * q8::kPanelRows;
        multiply(row, std::min(q8::kPanelRows, weight->ne[1] - row), inputs.tokens());
    };
    if (tokens <= kFewTokens) {
        own.few.fit(tokens, blocks);
        own.few.quantize(floats, stride, 0, tokens);
        const auto [first, last] = thread_share(panels, thread, threads);
        for (int64_t i = first; i < last; ++i) multiply_panel(i, own.few);
        return;
    }
    barrier_.arrive_and_wait(threads, [&] {
        next_.store(0, std::memory_order_relaxed);
        inputs_.fit(tokens, blocks);
    });
    const auto [first, last] = thread_share(tokens, thread, threads);
    inputs_.quantize(floats, stride, first, last);
    barrier_.arrive_and_wait(threads);
    // Several neighbors at a time, because a panel is prefetched while the one before it is multiplied.
    const int64_t some = std::clamp<int64_t>(panels / (8 * threads), 1, 16);
    for (int64_t i = next_.fetch_add(some); i < panels; i = next_.fetch_add(some)) {
        for (int64_t panel = i; panel < std::min(panels, i + some); ++panel) multiply_panel(panel, inputs_);
    }
}

void Q8Product::compute_rows(ggml_tensor* dst, int thread, int threads, void* product) {
    auto& self = *static_cast<Q8Product*>(product);
    const ggml_tensor* weight = dst->src[0];
    std::vector<std::byte>& panel = self.threads_[static_cast<size_t>(thread)].panel;
    self.compute(dst, thread, threads, [&](int64_t row, int64_t rows, const q8::Tokens& x) {
        panel.resize(std::max(panel.size(), q8::panel_bytes(x.blocks)));
        q8::pack_panel(row_of(weight, row), weight->nb[1], rows, x.blocks, panel.data());
        q8::multiply_panel(panel.data(), x, 0, dst->ne[1],
                           {static_cast<float*>(dst->data) + row, dst->nb[1] / sizeof(float), rows});
    });
}

void Q8Product::compute_panels(ggml_tensor* dst, int thread, int threads, void* product) {
    auto& self = *static_cast<Q8Product*>(product);
    const ggml_tensor* weight = dst->src[0];
    self.compute(dst, thread, threads, [&](int64_t row, int64_t rows, const q8::Tokens& x) {
        // A panel takes as many bytes as its rows, so row_of() finds it.
        q8::multiply_panel(row_of(weight, row), x, 0, dst->ne[1],
                           {static_cast<float*>(dst->data) + row, dst->nb[1] / sizeof(float), rows});
    });
}

}  // namespace refold
