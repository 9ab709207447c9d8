// Orders of rows in which some numbers are none.
#include "engine/worker/sorting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "engine/ggml/handles.h"

namespace refold {
namespace {

constexpr int64_t kNumbers = 60, kRows = 20;

// NaN comes before all numbers, and after them in descending order; ggml's own order of such a row is none.
TEST(Sorting, NanIsTheLeastNumber) {
    ggml_cpu_init();
    std::mt19937 random(1);
    for (const auto direction : {GGML_SORT_ORDER_ASC, GGML_SORT_ORDER_DESC}) {
        const ggml_context_ptr context(ggml_init({size_t{1} << 20, nullptr, false}));
        ggml_context* c = context.get();
        ggml_tensor* x = ggml_new_tensor_2d(c, GGML_TYPE_F32, kNumbers, kRows);
        auto* numbers = static_cast<float*>(x->data);
        for (int64_t i = 0; i < kNumbers * kRows; ++i)
            numbers[i] = random() % 3 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                           : static_cast<float>(random() % 1000) + 1;
        ggml_tensor* order = ggml_argsort(c, x, direction);
        rpc::sort_safely(order);
        ggml_cgraph* graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, order);
        ASSERT_EQ(ggml_graph_compute_with_ctx(c, graph, 1), GGML_STATUS_SUCCESS);
        for (int64_t row = 0; row < kRows; ++row) {
            const auto* got = static_cast<const int32_t*>(order->data) + row * kNumbers;
            std::vector<int32_t> all(got, got + kNumbers), every(kNumbers);
            std::vector<float> in_order;
            for (const int32_t i : all) {
                ASSERT_TRUE(0 <= i && i < kNumbers) << i;
                const float number = numbers[row * kNumbers + i];
                in_order.push_back(std::isnan(number) ? 0 : number);
            }
            if (direction == GGML_SORT_ORDER_DESC) std::ranges::reverse(in_order);
            EXPECT_TRUE(std::ranges::is_sorted(in_order)) << row;
            std::ranges::sort(all);
            std::iota(every.begin(), every.end(), 0);
            EXPECT_EQ(all, every);
        }
    }
}

}  // namespace
}  // namespace refold
