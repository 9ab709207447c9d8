#include "engine/worker/sorting.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "engine/ggml/handles.h"

namespace refold::rpc {
namespace {

// sort(order, before) of each row. Before: of two numbers, whether the first one comes first.
template <typename Before, typename Sort>
void for_rows(ggml_tensor* out, int thread, int threads, Sort sort) {
    const ggml_tensor* in = out->src[0];
    std::vector<float> numbers(static_cast<size_t>(in->ne[0]));
    std::vector<int32_t> order(numbers.size());
    for (int64_t row = thread; row < ggml_nrows(in); row += threads) {
        const auto at = [&](const ggml_tensor* t) {
            const int64_t i1 = row % t->ne[1], i2 = row / t->ne[1] % t->ne[2], i3 = row / t->ne[1] / t->ne[2];
            return static_cast<std::byte*>(t->data) + static_cast<size_t>(i1) * t->nb[1] +
                   static_cast<size_t>(i2) * t->nb[2] + static_cast<size_t>(i3) * t->nb[3];
        };
        std::memcpy(numbers.data(), at(in), numbers.size() * sizeof(float));
        for (float& number : numbers)
            if (std::isnan(number)) number = -std::numeric_limits<float>::infinity();
        std::iota(order.begin(), order.end(), 0);
        sort(order, [&](int32_t a, int32_t b) {
            return Before()(numbers[static_cast<size_t>(a)], numbers[static_cast<size_t>(b)]);
        });
        std::memcpy(at(out), order.data(), static_cast<size_t>(out->ne[0]) * sizeof(int32_t));
    }
}

template <typename Before>
void sort_all(ggml_tensor* out, int thread, int threads, void* /*data*/) {
    for_rows<Before>(out, thread, threads,
                     [](auto& order, auto before) { std::sort(order.begin(), order.end(), before); });
}

// As ggml's, with the two first ones swapped: their order is not to matter.
void sort_largest(ggml_tensor* out, int thread, int threads, void* /*data*/) {
    for_rows<std::greater<>>(out, thread, threads, [&](auto& order, auto before) {
        std::partial_sort(order.begin(), order.begin() + out->ne[0], order.end(), before);
        if (out->ne[0] > 1) std::swap(order[0], order[1]);
    });
}

}  // namespace

void sort_safely(ggml_tensor* operation) {
    ggml_custom_op_t sort = nullptr;
    if (operation->op == GGML_OP_TOP_K) {
        sort = sort_largest;
    } else if (operation->op == GGML_OP_ARGSORT) {
        sort =
            operation->op_params[0] == GGML_SORT_ORDER_ASC ? sort_all<std::less<>> : sort_all<std::greater<>>;
    } else {
        return;
    }
    std::array<ggml_tensor*, 1> sources = {operation->src[0]};
    const ggml_context_ptr context = make_context(1);
    if (!context) fail(ErrorCode::io, "worker", "no memory for an operation");
    const ggml_tensor* custom = ggml_custom_4d(context.get(), GGML_TYPE_I32, 1, 1, 1, 1, sources.data(), 1,
                                               sort, GGML_N_TASKS_MAX, nullptr);
    operation->op = custom->op;
    std::ranges::copy(custom->op_params, operation->op_params);
}

}  // namespace refold::rpc
