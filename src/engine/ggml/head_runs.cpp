// Products with weights that come in runs of several resident matrices.
//
// In: x F32 [token][column]; runs in rows of ggml blocks (plain) or groups of eight interleaved rows
// (q4_0x8). Out: F32 [token][row]; gather: the runs as one matrix in the same layout.
//
// Threads split the row groups of the result evenly; every thread quantizes x for itself, which for few
// tokens is cheaper than a barrier.
//
// Runs are the outer loop, then tokens, then the thread's rows of the run. Row runs write their part of y
// once; column runs (attn.o) each multiply their slice of x and add to y. Weights stream from memory for the
// first token; for further ones they come from the caches as far as a thread's rows of a run fit, which is
// why only few tokens are multiplied in place.
#include "engine/ggml/head_runs.h"

#include <algorithm>
#include <cstring>

#include "engine/ggml/thread_share.h"
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

// x in type `to`, one row of `row_bytes` bytes per token, in a buffer that all calls of this thread reuse.
const std::byte* quantized_input(const ggml_tensor* x, ggml_type to, size_t& row_bytes) {
    row_bytes = ggml_row_size(to, x->ne[0]);
    if (to == GGML_TYPE_F32) {
        row_bytes = x->nb[1];
        return static_cast<const std::byte*>(x->data);
    }
    thread_local std::vector<std::byte> buffer;
    buffer.resize(row_bytes * static_cast<size_t>(x->ne[1]));
    const ggml_from_float_t from_float = ggml_get_type_traits_cpu(to)->from_float;
    for (int64_t t = 0; t < x->ne[1]; ++t) {
        const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(x->data) +
                                                         static_cast<size_t>(t) * x->nb[1]);
        from_float(row, buffer.data() + row_bytes * static_cast<size_t>(t), x->ne[0]);
    }
    return buffer.data();
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

void multiply_in_place(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& plan = *static_cast<const LinearPlan*>(user);
    const ggml_tensor* x = dst->src[0];
    const Layout layout = plan.layout();
    const ggml_type type = plan.type();
    const ggml_type x_type = input_type(type, layout);
    size_t x_stride = 0;
    const std::byte* input = quantized_input(x, x_type, x_stride);
    const int64_t height = rows_per_group(layout);
    const auto [first, last] = thread_share(plan.out / height, thread, threads);  // row groups of the result
    const auto output = [&](int64_t token) {
        return reinterpret_cast<float*>(static_cast<char*>(dst->data) +
                                        static_cast<size_t>(token) * dst->nb[1]);
    };

    int64_t offset = 0;  // row groups, or columns, of the runs before this one
    for (const auto& run : plan.runs) {
        const auto* base = static_cast<const std::byte*>(run.storage->tensor->data);
        const size_t stride = group_bytes(type, layout, run.storage->in());
        const RowProduct product{type, layout, plan.columns ? run.count : plan.in};
        if (plan.columns) {
            const std::byte* weights =
                base + static_cast<size_t>(first) * stride + group_bytes(type, layout, run.first);
            const std::byte* slice = input + ggml_row_size(x_type, offset);
            for (int64_t t = 0; t < x->ne[1]; ++t) {
                product(weights, stride, slice + static_cast<size_t>(t) * x_stride, last - first,
                        output(t) + first * height, offset > 0);
            }
            offset += run.count;
        } else {
            const int64_t groups = run.count / height;
            const int64_t from = std::max(first, offset), to = std::min(last, offset + groups);
            if (from < to) {
                const std::byte* weights =
                    base + static_cast<size_t>(run.first / height + from - offset) * stride;
                for (int64_t t = 0; t < x->ne[1]; ++t) {
                    product(weights, stride, input + static_cast<size_t>(t) * x_stride, to - from,
                            output(t) + from * height, false);
                }
            }
            offset += groups;
        }
    }
}

void gather(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& plan = *static_cast<const LinearPlan*>(user);
    const Layout layout = plan.layout();
    const ggml_type type = plan.type();
    const int64_t height = rows_per_group(layout);
    const size_t out_stride = group_bytes(type, layout, plan.in);
    const auto [first, last] = thread_share(plan.out / height, thread, threads);
    auto* out = static_cast<std::byte*>(dst->data);

    int64_t offset = 0;
    for (const auto& run : plan.runs) {
        const auto* base = static_cast<const std::byte*>(run.storage->tensor->data);
        const size_t stride = group_bytes(type, layout, run.storage->in());
        if (plan.columns) {
            const size_t width = group_bytes(type, layout, run.count);
            for (int64_t g = first; g < last; ++g) {
                memcpy(out + static_cast<size_t>(g) * out_stride + group_bytes(type, layout, offset),
                       base + static_cast<size_t>(g) * stride + group_bytes(type, layout, run.first), width);
            }
            offset += run.count;
        } else {
            const int64_t groups = run.count / height;
            const int64_t from = std::max(first, offset), to = std::min(last, offset + groups);
            if (from < to) {
                memcpy(out + static_cast<size_t>(from) * out_stride,
                       base + static_cast<size_t>(run.first / height + from - offset) * stride,
                       static_cast<size_t>(to - from) * stride);
            }
            offset += groups;
        }
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
