// Our product of Q8_0 weights equals ggml's.
#include "engine/ggml/q8_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace refold {
namespace {

struct Shape {
    int64_t in, out, tokens;
    int threads;
};

class Q8ProductTest : public testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Q8ProductTest,
                         testing::Values(Shape{32, 16, 8, 1}, Shape{64, 1, 1, 1}, Shape{96, 17, 13, 1},
                                         Shape{576, 63, 30, 2}, Shape{1536, 160, 9, 3}, Shape{32, 15, 70, 4},
                                         Shape{96, 48, 1, 2}, Shape{576, 64, 2, 1}, Shape{64, 32, 3, 3}));

TEST_P(Q8ProductTest, EqualsTheOneOfGgml) {
    if (!Q8Product::available()) GTEST_SKIP() << "a CPU without AVX-512 VNNI";
    const auto [in, out, tokens, threads] = GetParam();
    ggml_cpu_init();
    const ggml_context_ptr context(ggml_init({size_t{64} << 20, nullptr, false}));
    ggml_context* c = context.get();
    std::mt19937 random(static_cast<uint32_t>(in * out + tokens));
    std::normal_distribution<float> normal;
    ggml_tensor* weight = ggml_new_tensor_2d(c, GGML_TYPE_Q8_0, in, out);
    // Tokens with something between them.
    ggml_tensor* wide = ggml_new_tensor_2d(c, GGML_TYPE_F32, in + 5, tokens);
    ggml_tensor* x = ggml_view_2d(c, wide, in, tokens, wide->nb[1], 0);
    std::vector<float> values(static_cast<size_t>(in * out));
    for (float& value : values) value = normal(random);
    ggml_quantize_chunk(GGML_TYPE_Q8_0, values.data(), weight->data, 0, out, in, nullptr);
    for (int64_t i = 0; i < ggml_nelements(wide); ++i) static_cast<float*>(wide->data)[i] = normal(random);
    Q8Product product(threads);
    // Twice, as in a graph of several layers.
    std::vector<ggml_tensor*> all = {product.of_rows(c, weight, x), product.of_rows(c, weight, x)};
    if (out % q8::kPanelRows == 0) {
        ggml_tensor* panels = ggml_dup_tensor(c, weight);
        q8::pack_panels(static_cast<const std::byte*>(weight->data), weight->nb[1], out, in / q8::kBlock,
                        static_cast<std::byte*>(panels->data));
        all.push_back(product.of_panels(c, panels, x));
        std::vector<float> stored(static_cast<size_t>(in)), unpacked(stored);
        const int64_t last = q8::kPanelRows - 1;
        ggml_get_type_traits(GGML_TYPE_Q8_0)
            ->to_float(static_cast<const char*>(weight->data) + static_cast<size_t>(last) * weight->nb[1],
                       stored.data(), in);
        q8::unpack_row(static_cast<const std::byte*>(panels->data), last, in / q8::kBlock, unpacked.data());
        EXPECT_EQ(unpacked, stored);
    }
    ggml_tensor* expected = ggml_mul_mat(c, weight, x);
    ggml_cgraph* graph = ggml_new_graph(c);
    for (ggml_tensor* node : all) ggml_build_forward_expand(graph, node);
    ggml_build_forward_expand(graph, expected);
    ggml_graph_compute_with_ctx(c, graph, threads);
    const double tolerance = 2e-6 * static_cast<double>(in);
    for (int64_t i = 0; i < ggml_nelements(expected); ++i) {
        for (const ggml_tensor* got : all) {
            ASSERT_NEAR(static_cast<const float*>(got->data)[i], static_cast<const float*>(expected->data)[i],
                        tolerance)
                << i;
        }
    }
}

}  // namespace
}  // namespace refold
