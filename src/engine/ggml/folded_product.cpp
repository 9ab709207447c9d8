// Folded weights times activations.
//
// In: weight of any quantized type [stored row][blocks]; x F32 [token][column]. Out: F32 [token][row].
//
// Row j of a stored row lies in blocks floor(j * columns / B) and following ones, from element
// j * columns mod B on. ggml's dot product reads these blocks; its other factor is the token at the same
// place among zeros. So a stored row needs its bytes once, and only the blocks that hold two rows are
// multiplied twice. Every thread quantizes the tokens for itself, some at a time, and meets its share of the
// rows with them.
#include "engine/ggml/folded_product.h"

#include <ggml-cpu.h>

#include <algorithm>

#include "engine/ggml/thread_share.h"

namespace refold {
namespace {

constexpr int64_t kTogether = 8;  // tokens that a row meets while it is in the cache

const float* token_of(const ggml_tensor* x, int64_t token) {
    return reinterpret_cast<const float*>(static_cast<const std::byte*>(x->data) +
                                          static_cast<size_t>(token) * x->nb[1]);
}

float* result_of(ggml_tensor* dst, int64_t token) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(dst->data) +
                                    static_cast<size_t>(token) * dst->nb[1]);
}

// Where a row begins in its stored row, in blocks and elements of a block, and the blocks that it touches.
struct Place {
    int64_t first, shift, blocks;
};

Place place_of(int64_t row, int64_t columns, int64_t block) {
    const int64_t begin = row * columns, end = begin + columns;
    return {begin / block, begin % block, (end + block - 1) / block - begin / block};
}

}  // namespace

ggml_tensor* FoldedProduct::multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
    ggml_tensor* arguments[] = {weight, x};
    const int64_t rows = weight->ne[0] / x->ne[0] * weight->ne[1];
    return ggml_custom_4d(context, GGML_TYPE_F32, rows, x->ne[1], 1, 1, arguments, 2, compute,
                          GGML_N_TASKS_MAX, this);
}

void FoldedProduct::compute(ggml_tensor* dst, int thread, int threads, void* product) {
    auto& self = *static_cast<FoldedProduct*>(product);
    const ggml_tensor *weight = dst->src[0], *x = dst->src[1];
    const int64_t columns = x->ne[0], fold = weight->ne[0] / columns, block = ggml_blck_size(weight->type);
    const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(weight->type);
    const ggml_type input_type = traits->vec_dot_type;
    const ggml_from_float_t from_float = ggml_get_type_traits_cpu(input_type)->from_float;
    std::vector<Place> places;
    int64_t longest = 0;
    for (int64_t j = 0; j < fold; ++j) {
        places.push_back(place_of(j, columns, block));
        longest = std::max(longest, places.back().blocks);
    }
    ThreadScratch& own = self.threads_[static_cast<size_t>(thread)];
    const size_t stride = ggml_row_size(input_type, longest * block);
    own.inputs.resize(stride * static_cast<size_t>(fold * kTogether));
    const auto input = [&](int64_t token, size_t j) {
        return own.inputs.data() + (static_cast<size_t>(token * fold) + j) * stride;
    };
    const auto [first, last] = thread_share(weight->ne[1], thread, threads);
    for (int64_t from = 0; from < dst->ne[1]; from += kTogether) {
        const int64_t count = std::min(kTogether, dst->ne[1] - from);
        for (int64_t t = 0; t < count; ++t) {
            for (size_t j = 0; j < places.size(); ++j) {
                own.floats.assign(static_cast<size_t>(places[j].blocks * block), 0.0F);
                std::copy_n(token_of(x, from + t), columns, own.floats.begin() + places[j].shift);
                from_float(own.floats.data(), input(t, j), places[j].blocks * block);
            }
        }
        for (int64_t row = first; row < last; ++row) {
            const auto* stored =
                static_cast<const std::byte*>(weight->data) + static_cast<size_t>(row) * weight->nb[1];
            for (size_t j = 0; j < places.size(); ++j) {
                const std::byte* blocks = stored + ggml_row_size(weight->type, places[j].first * block);
                for (int64_t t = 0; t < count; ++t) {
                    traits->vec_dot(static_cast<int>(places[j].blocks * block),
                                    result_of(dst, from + t) + row * fold + static_cast<int64_t>(j), 0,
                                    blocks, 0, input(t, j), 0, 1);
                }
            }
        }
    }
}

}  // namespace refold
