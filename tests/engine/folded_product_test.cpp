// Products with folded weights equal those with their values.
#include "engine/ggml/folded_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "io/dtype.h"

namespace refold {
namespace {

struct Shape {
    int64_t columns, rows, tokens;
    int threads;
};

class FoldedProductTest : public testing::TestWithParam<Shape> {};
// Folds of 4, 2, 4, 8 and 1; few and many tokens; rows that end inside a panel.
INSTANTIATE_TEST_SUITE_P(Shapes, FoldedProductTest,
                         testing::Values(Shape{576, 64, 1, 1}, Shape{640, 22, 3, 2}, Shape{320, 28, 40, 2},
                                         Shape{96, 24, 17, 3}, Shape{96, 72, 33, 2}, Shape{256, 5, 30, 2},
                                         Shape{576, 4, 100, 4}));

TEST_P(FoldedProductTest, EqualsTheProductWithTheValues) {
    const auto [columns, rows, tokens, threads] = GetParam();
    ggml_cpu_init();
    std::mt19937 random(static_cast<uint32_t>(columns * rows + tokens));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(columns * rows));
    for (float& value : values) value = normal(random);
    for (const DType type :
         {DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q6_K, DType::IQ3_S, DType::IQ4_XS}) {
        SCOPED_TRACE(name(type));
        const int64_t together = fold(type, columns);
        ASSERT_EQ(rows % together, 0);
        const ggml_context_ptr context(ggml_init({size_t{16} << 20, nullptr, false}));
        ggml_context* c = context.get();
        ggml_tensor* weight =
            ggml_new_tensor_2d(c, static_cast<ggml_type>(type), columns * together, rows / together);
        const auto packed = quantize(type, values, columns);
        ASSERT_EQ(packed.size(), ggml_nbytes(weight));
        std::copy(packed.begin(), packed.end(), static_cast<std::byte*>(weight->data));
        std::vector<float> unpacked(values.size());
        dequantize(type, packed, unpacked);
        // Tokens with something between them.
        ggml_tensor* wide = ggml_new_tensor_2d(c, GGML_TYPE_F32, columns + 5, tokens);
        ggml_tensor* x = ggml_view_2d(c, wide, columns, tokens, wide->nb[1], 0);
        auto* inputs = static_cast<float*>(wide->data);
        for (int64_t i = 0; i < ggml_nelements(wide); ++i) inputs[i] = normal(random);
        FoldedProduct product(threads);
        ggml_tensor* got = product.multiply(c, weight, x);
        ggml_cgraph* graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, got);
        ggml_graph_compute_with_ctx(c, graph, threads);
        ASSERT_EQ(got->ne[0], rows);
        // Inputs become 8-bit numbers, or BF16, with independent errors.
        const double tolerance = 0.05 * std::sqrt(static_cast<double>(columns));
        for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t r = 0; r < rows; ++r) {
                double wanted = 0;
                for (int64_t i = 0; i < columns; ++i)
                    wanted += static_cast<double>(unpacked[static_cast<size_t>(r * columns + i)]) *
                              static_cast<double>(inputs[t * (columns + 5) + i]);
                ASSERT_NEAR(static_cast<const float*>(got->data)[t * rows + r], wanted, tolerance)
                    << "token " << t << ", row " << r;
            }
        }
    }
}

}  // namespace
}  // namespace refold
