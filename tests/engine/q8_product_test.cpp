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
                                         Shape{576, 63, 30, 2}, Shape{1536, 160, 9, 3}, Shape{32, 15, 70, 4}));

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
    ggml_tensor* ours = product.node(c, weight, x);
    ggml_tensor* again = product.node(c, weight, x);
    ggml_tensor* expected = ggml_mul_mat(c, weight, x);
    ggml_cgraph* graph = ggml_new_graph(c);
    for (ggml_tensor* node : {ours, again, expected}) ggml_build_forward_expand(graph, node);
    ggml_graph_compute_with_ctx(c, graph, threads);
    const double tolerance = 2e-6 * static_cast<double>(in);
    for (int64_t i = 0; i < ggml_nelements(expected); ++i) {
        for (const ggml_tensor* got : {ours, again}) {
            ASSERT_NEAR(static_cast<const float*>(got->data)[i], static_cast<const float*>(expected->data)[i],
                        tolerance)
                << i;
        }
    }
}

}  // namespace
}  // namespace refold
