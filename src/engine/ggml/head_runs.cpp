// Products with weights in rows, which may come in runs of several resident matrices.
//
// In: x F32 [token][column]; runs in rows of ggml blocks (plain) or groups of eight interleaved rows
// (q4_0x8), of any types. Out: F32 [token][row].
//
// Threads split the row groups of the result evenly; every thread quantizes x for itself, once for each type.
//
// Runs are the outer loop, then some row groups, tokens, and these rows. Row runs write their part of y once;
// column runs (attn.o) each multiply their slice of x and add to y. Weights stream from memory for the first
// token; for further ones they come from the caches.
#include "engine/ggml/head_runs.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine/ggml/thread_share.h"
#include "engine/ggml/token_rows.h"
#include "io/ggml_cpu.h"

namespace refold::head_runs {
namespace {

constexpr int64_t kBlock = 32;       // elements of a Q4_0 or Q8_0 block
constexpr int64_t kInterleaved = 8;  // rows of a q4_0x8 group
// Eight fp16 scales and eight times 16 bytes of quants.
constexpr size_t kGroupBlockBytes = kInterleaved * (sizeof(ggml_fp16_t) + kBlock / 2);

// ggml's kernel for its repacked layout, whose header is not installed. Null: there is none, and shared Q4_0
// heads stay in the plain layout.
using Q4x8Product = void (*)(int n, float* s, size_t bs, const void* vx, const void* vy, int nr, int nc);
Q4x8Product q4_0x8_product() {
    static const auto product = reinterpret_cast<Q4x8Product>(ggml_cpu_function("ggml_gemv_q4_0_8x8_q8_0"));
    return product;
}

// x in the types that kernels take, in buffers that all calls of a thread reuse.
class QuantizedRows {
public:
    // Forgets the inputs before.
    void set(const ggml_tensor* x) {
        x_ = x;
        used_.clear();
    }

    // One row per token, stride(to) bytes apart; valid until the next set().
    const std::byte* get(ggml_type to) {
        if (to == GGML_TYPE_F32) return static_cast<const std::byte*>(x_->data);
        std::vector<std::byte>& buffer = buffers_[to];
        if (!used_.insert(to).second) return buffer.data();
        buffer.resize(stride(to) * static_cast<size_t>(x_->ne[1]));
        const ggml_from_float_t from_float = ggml_get_type_traits_cpu(to)->from_float;
        for (int64_t t = 0; t < x_->ne[1]; ++t)
            from_float(refold::row_of(x_, t), buffer.data() + stride(to) * static_cast<size_t>(t), x_->ne[0]);
        return buffer.data();
    }
    size_t stride(ggml_type to) const {
        return to == GGML_TYPE_F32 ? x_->nb[1] : ggml_row_size(to, x_->ne[0]);
    }

private:
    const ggml_tensor* x_ = nullptr;
    std::map<ggml_type, std::vector<std::byte>> buffers_;
    std::set<ggml_type> used_;
};

QuantizedRows& quantized_rows(const ggml_tensor* x) {
    thread_local QuantizedRows rows;
    rows.set(x);
    return rows;
}

// Row groups that meet all tokens before the next ones are read.
constexpr int64_t kGroupsTogether = 16;

// Row groups of a storage, of `in` columns, times columns of x from `column` on; they follow each other in y.
struct GroupProduct {
    RowProduct product;
    const std::byte* weights;
    size_t stride;
    int64_t groups, column;
    bool add;

    // y: the first row of the first token in dst.
    void run(QuantizedRows& inputs, ggml_tensor* dst, int64_t row) const {
        const ggml_type type = input_type(product.type, product.layout);
        const std::byte* x = inputs.get(type) + ggml_row_size(type, column);
        const int64_t height = rows_per_group(product.layout);
        for (int64_t g = 0; g < groups; g += kGroupsTogether) {
            for (int64_t t = 0; t < dst->ne[1]; ++t) {
                product(weights + static_cast<size_t>(g) * stride, stride,
                        x + static_cast<size_t>(t) * inputs.stride(type),
                        std::min(kGroupsTogether, groups - g), refold::row_of(dst, t) + row + g * height,
                        add);
            }
        }
    }
};

void multiply_rows_of(ggml_tensor* dst, int thread, int threads, void* /*user*/) {
    const ggml_tensor* weight = dst->src[0];
    const auto [first, last] = thread_share(weight->ne[1], thread, threads);
    const GroupProduct rows{
        {weight->type, Layout::plain, weight->ne[0]},
        static_cast<const std::byte*>(weight->data) + static_cast<size_t>(first) * weight->nb[1],
        weight->nb[1],
        last - first,
        0,
        false};
    rows.run(quantized_rows(dst->src[1]), dst, first);
}

}  // namespace

bool has_q4_0x8() { return q4_0x8_product() != nullptr && ggml_cpu_has_avx2() != 0; }

int64_t rows_per_group(Layout layout) { return layout == Layout::q4_0x8 ? kInterleaved : 1; }

size_t group_bytes(ggml_type type, Layout layout, int64_t columns) {
    return layout == Layout::q4_0x8 ? static_cast<size_t>(columns / kBlock) * kGroupBlockBytes
                                    : ggml_row_size(type, columns);
}

ggml_type input_type(ggml_type type, Layout layout) {
    return layout == Layout::q4_0x8 ? GGML_TYPE_Q8_0 : ggml_get_type_traits_cpu(type)->vec_dot_type;
}

void RowProduct::operator()(const std::byte* weights, size_t stride, const std::byte* x, int64_t groups,
                            float* y, bool add) const {
    if (layout == Layout::plain) {
        const ggml_vec_dot_t dot = ggml_get_type_traits_cpu(type)->vec_dot;
        for (int64_t r = 0; r < groups; ++r) {
            float value = 0;
            dot(static_cast<int>(in), &value, 0, weights + static_cast<size_t>(r) * stride, 0, x, 0, 1);
            y[r] = add ? y[r] + value : value;
        }
        return;
    }
    const int n = static_cast<int>(in);
    if (!add && stride == group_bytes(type, layout, in)) {
        q4_0x8_product()(n, y, 0, weights, x, 1, static_cast<int>(groups * kInterleaved));
        return;
    }
    float values[kInterleaved];
    for (int64_t g = 0; g < groups; ++g) {
        q4_0x8_product()(n, values, 0, weights + static_cast<size_t>(g) * stride, x, 1, kInterleaved);
        for (int64_t i = 0; i < kInterleaved; ++i) {
            float& target = y[g * kInterleaved + i];
            target = add ? target + values[i] : values[i];
        }
    }
}

ggml_tensor* multiply_rows(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
    ggml_tensor* sources[] = {weight, x};
    return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, sources, 2, multiply_rows_of,
                          GGML_N_TASKS_MAX, nullptr);
}

void multiply_in_place(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& plan = *static_cast<const LinearPlan*>(user);
    QuantizedRows& inputs = quantized_rows(dst->src[0]);
    int64_t together = 1;  // rows that one thread takes
    for (const Run& run : plan.runs) together = std::max(together, rows_per_group(run.storage->layout));
    auto [first, last] = thread_share(plan.out / together, thread, threads);
    first *= together;
    last *= together;
    int64_t offset = 0;  // rows, or columns, of the runs before this one
    for (const Run& run : plan.runs) {
        const Layout layout = run.storage->layout;
        const ggml_type type = run.storage->tensor->type;
        const int64_t height = rows_per_group(layout);
        const size_t stride = group_bytes(type, layout, run.storage->in());
        const auto* base = static_cast<const std::byte*>(run.storage->tensor->data);
        if (plan.columns) {
            const GroupProduct columns{
                {type, layout, run.count},
                base + static_cast<size_t>(first / height) * stride + group_bytes(type, layout, run.first),
                stride,
                (last - first) / height,
                offset,
                offset > 0};
            columns.run(inputs, dst, first);
        } else if (const int64_t from = std::max(first, offset), to = std::min(last, offset + run.count);
                   from < to) {
            const GroupProduct rows{{type, layout, plan.in},
                                    base + static_cast<size_t>((run.first + from - offset) / height) * stride,
                                    stride,
                                    (to - from) / height,
                                    0,
                                    false};
            rows.run(inputs, dst, from);
        }
        offset += run.count;
    }
}

void dequantize_q4_0x8_row(const std::byte* table, int64_t row, std::span<float> out) {
    const auto blocks = static_cast<int64_t>(out.size()) / kBlock;
    const std::byte* group = table + static_cast<size_t>(row / kInterleaved * blocks) * kGroupBlockBytes;
    const int64_t lane = row % kInterleaved;
    for (int64_t b = 0; b < blocks; ++b) {
        const std::byte* block = group + static_cast<size_t>(b) * kGroupBlockBytes;
        ggml_fp16_t half;
        memcpy(&half, block + static_cast<size_t>(lane) * sizeof(half), sizeof(half));
        const float scale = ggml_fp16_to_fp32(half);
        // Quants lie in chunks of eight bytes per row, with their sign bits flipped.
        const auto* quants = reinterpret_cast<const uint8_t*>(block + kInterleaved * sizeof(half));
        for (int64_t j = 0; j < kBlock / 2; ++j) {
            const uint8_t byte = quants[(j / 8 * kInterleaved + lane) * 8 + j % 8] ^ 0x88;
            out[static_cast<size_t>(b * kBlock + j)] = scale * static_cast<float>((byte & 15) - 8);
            out[static_cast<size_t>(b * kBlock + j + kBlock / 2)] =
                scale * static_cast<float>((byte >> 4) - 8);
        }
    }
}

}  // namespace refold::head_runs
