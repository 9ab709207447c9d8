// Graphs of a worker's client give the same with products of panels, and its memory reads as it wrote it.
#include "engine/ggml/worker_panels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "engine/ggml/handles.h"
#include "io/ggml_cpu.h"

namespace refold {
namespace {

constexpr int kThreads = GGML_DEFAULT_N_THREADS;  // of a new backend
constexpr int64_t kColumns = 64, kRows = 40, kTokens = 3;

std::vector<float> random_floats(int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
}

// A client's tensors and one graph of them, in memory as a worker has it.
class ClientGraph {
public:
    ClientGraph()
        : backend_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)),
          context_(make_context(64, 2 * ggml_graph_overhead())),
          graph_(ggml_new_graph(context_.get())) {}

    ggml_context* context() { return context_.get(); }
    ggml_cgraph* graph() { return graph_; }
    ggml_tensor* matrix(ggml_type type) { return ggml_new_tensor_2d(context(), type, kColumns, kRows); }
    ggml_tensor* inputs() { return ggml_new_tensor_2d(context(), GGML_TYPE_F32, kColumns, kTokens); }
    void add(ggml_tensor* result) { ggml_build_forward_expand(graph_, result); }
    void allocate() { memory_.reset(ggml_backend_alloc_ctx_tensors(context(), backend_.get())); }
    static void set(ggml_tensor* tensor, uint32_t seed) {
        const std::vector<float> values = random_floats(ggml_nelements(tensor), seed);
        std::vector<std::byte> bytes(ggml_nbytes(tensor));
        ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, ggml_nrows(tensor), tensor->ne[0],
                            nullptr);
        memcpy(tensor->data, bytes.data(), bytes.size());
    }
    void compute() { ASSERT_EQ(ggml_backend_graph_compute(backend_.get(), graph_), GGML_STATUS_SUCCESS); }

private:
    ggml_backend_ptr backend_;
    ggml_context_ptr context_;
    ggml_cgraph* graph_;
    ggml_backend_buffer_ptr memory_;
};

std::vector<std::byte> bytes_of(const ggml_tensor* tensor) {
    const auto* data = static_cast<const std::byte*>(tensor->data);
    return {data, data + ggml_nbytes(tensor)};
}

void expect_close(const ggml_tensor* result, const std::vector<std::byte>& expected) {
    const auto* values = static_cast<const float*>(result->data);
    const auto* others = reinterpret_cast<const float*>(expected.data());
    for (int64_t i = 0; i < ggml_nelements(result); ++i)
        ASSERT_NEAR(values[i], others[i], 0.02 * std::sqrt(kColumns)) << i;
}

class WorkerPanelsTest : public testing::TestWithParam<ggml_type> {
protected:
    void SetUp() override { load_ggml_cpu(); }
};

TEST_P(WorkerPanelsTest, ProductsAreTheSameAndRowsComeBack) {
    ClientGraph client;
    ggml_tensor *weight = client.matrix(GetParam()), *x = client.inputs();
    ggml_tensor* result = ggml_mul_mat(client.context(), weight, x);
    client.add(result);
    client.allocate();
    ClientGraph::set(weight, 1);
    ClientGraph::set(x, 2);
    client.compute();
    const std::vector<std::byte> expected = bytes_of(result), stored = bytes_of(weight);

    WorkerPanels panels(kThreads);
    for (int time = 0; time < 2; ++time) {
        panels.prepare(client.graph());
        EXPECT_EQ(result->op, GGML_OP_CUSTOM);
        EXPECT_NE(bytes_of(weight), stored);
        memset(result->data, 0, ggml_nbytes(result));
        client.compute();
        expect_close(result, expected);
    }
    panels.before_access(static_cast<char*>(weight->data) + ggml_nbytes(weight) - 1, 1);
    EXPECT_EQ(bytes_of(weight), stored);
    panels.prepare(client.graph());
    EXPECT_EQ(result->op, GGML_OP_MUL_MAT);
    client.compute();
    EXPECT_EQ(bytes_of(result), expected);
}

std::string type_name(const testing::TestParamInfo<ggml_type>& type) { return ggml_type_name(type.param); }
INSTANTIATE_TEST_SUITE_P(Types, WorkerPanelsTest,
                         testing::Values(GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL,
                                         GGML_TYPE_BF16, GGML_TYPE_F16),
                         type_name);

// A matrix that is read by another operation as well, also in a later graph, or that a graph writes.
TEST(WorkerPanels, RowsForOtherOperations) {
    load_ggml_cpu();
    ClientGraph client;
    ggml_tensor *weight = client.matrix(GGML_TYPE_Q8_0), *other = client.matrix(GGML_TYPE_F16),
                *x = client.inputs();
    ggml_tensor* product = ggml_mul_mat(client.context(), weight, x);
    ggml_tensor* written = ggml_mul_mat(client.context(), other, x);
    ggml_tensor* some = ggml_new_tensor_2d(client.context(), GGML_TYPE_F32, kColumns, 2);
    ggml_tensor* write =
        ggml_cpy(client.context(), some,
                 ggml_view_2d(client.context(), other, kColumns, 2, other->nb[1], other->nb[1]));
    client.add(product);
    client.add(written);
    client.add(write);
    ggml_tensor* row = ggml_new_tensor_1d(client.context(), GGML_TYPE_I32, 1);
    ggml_tensor* read = ggml_get_rows(client.context(), weight, row);
    ggml_cgraph* later = ggml_new_graph_custom(client.context(), 4, false);
    ggml_build_forward_expand(later, read);
    client.allocate();
    ClientGraph::set(weight, 1);
    ClientGraph::set(other, 2);
    ClientGraph::set(x, 3);
    ClientGraph::set(some, 4);
    const std::vector<std::byte> stored = bytes_of(weight);

    WorkerPanels panels(kThreads);
    panels.prepare(client.graph());
    EXPECT_EQ(product->op, GGML_OP_CUSTOM);
    EXPECT_EQ(written->op, GGML_OP_MUL_MAT);
    EXPECT_NE(bytes_of(weight), stored);
    panels.prepare(later);
    EXPECT_EQ(bytes_of(weight), stored);
    panels.prepare(client.graph());
    EXPECT_EQ(product->op, GGML_OP_MUL_MAT);
}

// Rows of a tensor are matrices of their own, until its rows are used in another way.
TEST(WorkerPanels, PartsOfATensor) {
    load_ggml_cpu();
    ClientGraph client;
    ggml_context* context = client.context();
    ggml_tensor *whole = client.matrix(GGML_TYPE_Q8_0), *x = client.inputs();
    const auto rows = [&](int64_t first, int64_t count) {
        return ggml_mul_mat(context,
                            ggml_view_2d(context, whole, kColumns, count, whole->nb[1],
                                         static_cast<size_t>(first) * whole->nb[1]),
                            x);
    };
    ggml_tensor *first = rows(0, 24), *second = rows(24, 16);
    client.add(first);
    client.add(second);
    ggml_cgraph* later = ggml_new_graph_custom(context, 8, false);
    ggml_tensor* across = rows(8, 32);
    ggml_build_forward_expand(later, across);
    client.allocate();
    ClientGraph::set(whole, 1);
    ClientGraph::set(x, 2);
    client.compute();
    const std::vector<std::byte> expected[] = {bytes_of(first), bytes_of(second)}, stored = bytes_of(whole);

    WorkerPanels panels(kThreads);
    panels.prepare(client.graph());
    EXPECT_EQ(first->op, GGML_OP_CUSTOM);
    EXPECT_EQ(second->op, GGML_OP_CUSTOM);
    client.compute();
    expect_close(first, expected[0]);
    expect_close(second, expected[1]);
    panels.prepare(later);
    EXPECT_EQ(across->op, GGML_OP_MUL_MAT);
    EXPECT_EQ(bytes_of(whole), stored);
}

// Memory that was given back is another matrix's afterwards.
TEST(WorkerPanels, MemoryThatIsUsedAgain) {
    load_ggml_cpu();
    ClientGraph client;
    ggml_tensor *weight = client.matrix(GGML_TYPE_Q8_0), *x = client.inputs();
    ggml_tensor* product = ggml_mul_mat(client.context(), weight, x);
    client.add(product);
    client.allocate();
    WorkerPanels panels(kThreads);
    ClientGraph::set(x, 1);
    for (const uint32_t seed : {2U, 3U}) {
        ClientGraph::set(weight, seed);
        const std::vector<std::byte> stored = bytes_of(weight);
        panels.prepare(client.graph());
        EXPECT_EQ(product->op, GGML_OP_CUSTOM);
        EXPECT_NE(bytes_of(weight), stored);
        panels.forget(static_cast<char*>(weight->data) - 64, 128);
    }
}

}  // namespace
}  // namespace refold
