#include "engine/ggml/row_parts.h"

#include <algorithm>

#include "engine/ggml/thread_share.h"

namespace refold {
namespace {

void put_rows(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& ids = *static_cast<const std::vector<int32_t>*>(user);
    int64_t first = 0;  // row of a part in row_ids
    for (int s = 0; s < GGML_MAX_SRC && dst->src[s] != nullptr; ++s) {
        const ggml_tensor* part = dst->src[s];
        const auto [from, to] = thread_share(part->ne[0], thread, threads);
        for (int64_t t = 0; t < dst->ne[1]; ++t) {
            const auto* x = reinterpret_cast<const float*>(static_cast<const char*>(part->data) +
                                                           static_cast<size_t>(t) * part->nb[1]);
            auto* y =
                reinterpret_cast<float*>(static_cast<char*>(dst->data) + static_cast<size_t>(t) * dst->nb[1]);
            for (int64_t r = from; r < to; ++r) y[ids[static_cast<size_t>(first + r)]] = x[r];
        }
        first += part->ne[0];
    }
}

}  // namespace

ggml_tensor* rows_of_parts(ggml_context* context, std::vector<ggml_tensor*> products,
                           const std::vector<int32_t>& row_ids) {
    return ggml_custom_4d(context, GGML_TYPE_F32, static_cast<int64_t>(row_ids.size()),
                          products.front()->ne[1], 1, 1, products.data(), static_cast<int>(products.size()),
                          put_rows, GGML_N_TASKS_MAX, const_cast<std::vector<int32_t>*>(&row_ids));
}

}  // namespace refold
