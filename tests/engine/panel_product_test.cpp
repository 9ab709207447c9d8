// Products of panels are those of the values of weights and inputs, for every type, whatever the number of
// tokens.
#include "engine/ggml/panel_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

#include "engine/cpu_level.h"
#include "io/dtype.h"

namespace refold {
namespace {

constexpr std::array kTypes = {DType::Q4_0,    DType::Q4_1,   DType::Q5_0,   DType::Q5_1,    DType::Q8_0,
                               DType::IQ4_NL,  DType::MXFP4,  DType::Q2_K,   DType::Q3_K,    DType::Q4_K,
                               DType::Q5_K,    DType::Q6_K,   DType::IQ4_XS, DType::IQ1_S,   DType::IQ1_M,
                               DType::IQ2_XXS, DType::IQ2_XS, DType::IQ2_S,  DType::IQ3_XXS, DType::IQ3_S,
                               DType::BF16,    DType::F16,    DType::F32};

struct Shape {
    int64_t columns, rows, tokens;
    int threads;
};

// Folds of 1, 2, 4 and 8 of the types of 256; panels that are not full; few tokens, several and many.
constexpr Shape kShapes[] = {{256, 16, 1, 1}, {256, 5, 3, 1},   {576, 64, 1, 2}, {576, 136, 4, 3},
                             {640, 40, 5, 2}, {512, 97, 9, 2},  {96, 72, 33, 2}, {1536, 48, 8, 1},
                             {96, 24, 17, 4}, {576, 208, 40, 2}};

std::vector<float> random_floats(size_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
}

class PanelProductTest : public testing::TestWithParam<DType> {
protected:
    void SetUp() override { ggml_cpu_init(); }
    void TearDown() override { set_cpu_level(cpu_levels().front()); }

    static bool supported() { return row_panels::supports(static_cast<ggml_type>(GetParam()), 32); }

    // Types whose codes are looked up in registers, which only the best level can.
    static bool is_grid() {
        const std::string type = name(GetParam());
        return type.starts_with("IQ") && !type.starts_with("IQ4");
    }

    // Calls function() for each level of this CPU that has products of the type.
    template <class Function>
    static void on_every_level(const Function& function) {
        for (const std::string& level : cpu_levels()) {
            SCOPED_TRACE(level);
            set_cpu_level(level);
            if (!supported() && is_grid() && level != "avx512_vnni") continue;
            ASSERT_TRUE(supported());
            function();
        }
    }

    // Inputs as products with the type take them.
    static std::vector<float> rounded(std::span<const float> inputs) {
        InputForms forms;
        row_panels::add_form(forms, static_cast<ggml_type>(GetParam()));
        std::vector<float> out(inputs.begin(), inputs.end());
        if (!forms.bytes && !forms.pairs) return out;
        const DType type = forms.pairs ? DType::BF16 : DType::Q8_0;
        const auto count = static_cast<int64_t>(inputs.size());
        dequantize(type, quantize(type, inputs, count), out);
        return out;
    }

    // A weight [columns * fold, rows / fold] and its values.
    ggml_tensor* weight(ggml_context* c, int64_t columns, int64_t rows, std::vector<float>& values) const {
        const DType type = GetParam();
        const int64_t together = fold(type, columns);
        EXPECT_EQ(rows % together, 0);
        // Kept, because IQ1 and IQ2 are searched for long.
        static std::map<std::tuple<DType, int64_t, int64_t>, std::vector<std::byte>> made;
        std::vector<std::byte>& packed = made[{type, columns, rows}];
        if (packed.empty()) {
            const std::vector<float> importance(needs_importance(type) ? static_cast<size_t>(columns) : 0,
                                                1.0F);
            packed =
                quantize(type, random_floats(static_cast<size_t>(columns * rows), 1), columns, importance);
        }
        ggml_tensor* tensor =
            ggml_new_tensor_2d(c, static_cast<ggml_type>(type), columns * together, rows / together);
        EXPECT_EQ(packed.size(), ggml_nbytes(tensor));
        std::copy(packed.begin(), packed.end(), static_cast<std::byte*>(tensor->data));
        values.resize(static_cast<size_t>(columns * rows));
        dequantize(type, packed, values);
        return tensor;
    }

    // Random tokens [columns, tokens], and their numbers where these are wanted.
    static ggml_tensor* tokens_of(ggml_context* c, int64_t columns, int64_t tokens,
                                  std::vector<float>* numbers = nullptr) {
        ggml_tensor* x = ggml_new_tensor_2d(c, GGML_TYPE_F32, columns, tokens);
        const auto inputs = random_floats(static_cast<size_t>(columns * tokens), 3);
        std::copy(inputs.begin(), inputs.end(), static_cast<float*>(x->data));
        if (numbers != nullptr) *numbers = inputs;
        return x;
    }

    static ggml_tensor* in_panels(ggml_context* c, const ggml_tensor* weight) {
        ggml_tensor* panels = ggml_dup_tensor(c, weight);
        row_panels::pack(weight->type, static_cast<const std::byte*>(weight->data), weight->nb[1],
                         weight->ne[1], weight->ne[0], static_cast<std::byte*>(panels->data));
        return panels;
    }
};
INSTANTIATE_TEST_SUITE_P(Types, PanelProductTest, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(name(type.param)); });

TEST_P(PanelProductTest, IsTheProductOfTheValues) {
    on_every_level([&] {
        for (const auto& [columns, rows, tokens, threads] : kShapes) {
            if (rows % fold(GetParam(), columns) != 0) continue;
            SCOPED_TRACE(testing::Message() << columns << " x " << rows << ", " << tokens << " tokens");
            const ggml_context_ptr context(ggml_init({size_t{32} << 20, nullptr, false}));
            ggml_context* c = context.get();
            std::vector<float> values;
            ggml_tensor* w = weight(c, columns, rows, values);
            // Tokens with something between them.
            ggml_tensor* wide = ggml_new_tensor_2d(c, GGML_TYPE_F32, columns + 5, tokens);
            ggml_tensor* x = ggml_view_2d(c, wide, columns, tokens, wide->nb[1], 0);
            const auto inputs = random_floats(static_cast<size_t>(ggml_nelements(wide)), 2);
            std::copy(inputs.begin(), inputs.end(), static_cast<float*>(wide->data));
            PanelProduct product(threads);
            // Twice, as in a graph of several layers.
            ggml_tensor* panels = in_panels(c, w);
            const std::vector<ggml_tensor*> all = {product.of_panels(c, panels, x),
                                                   product.of_panels(c, panels, x)};
            ggml_cgraph* graph = ggml_new_graph(c);
            for (ggml_tensor* node : all) ggml_build_forward_expand(graph, node);
            ggml_graph_compute_with_ctx(c, graph, threads);
            for (const ggml_tensor* got : all) {
                ASSERT_EQ(got->ne[0], rows);
                EXPECT_EQ(memcmp(got->data, all[0]->data, ggml_nbytes(got)), 0);
            }
            for (int64_t t = 0; t < tokens; ++t) {
                const std::vector<float> token = rounded(std::span(inputs).subspan(
                    static_cast<size_t>(t * (columns + 5)), static_cast<size_t>(columns)));
                for (int64_t r = 0; r < rows; ++r) {
                    double sum = 0, size = 0;
                    for (size_t i = 0; i < token.size(); ++i) {
                        const double part =
                            static_cast<double>(values[static_cast<size_t>(r * columns) + i]) *
                            static_cast<double>(token[i]);
                        sum += part;
                        size += std::abs(part);
                    }
                    ASSERT_NEAR(static_cast<const float*>(all[0]->data)[t * rows + r], sum,
                                4e-6 * size + 1e-6)
                        << "token " << t << ", row " << r;
                }
            }
        }
    });
}

// The largest bytes of a type with the largest inputs: sums of 16 bits have no room to spare.
TEST_P(PanelProductTest, OfTheLargestNumbers) {
    constexpr int64_t kColumns = 256, kOutputs = 16;
    std::vector<float> numbers(kColumns * kOutputs), values(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = (i % 32 == 0) == (i / kColumns % 2 == 0) ? 1.0F : -1.0F;
    const std::vector<float> importance(needs_importance(GetParam()) ? kColumns : 0, 1.0F);
    const std::vector<std::byte> packed = quantize(GetParam(), numbers, kColumns, importance);
    dequantize(GetParam(), packed, values);
    const auto one = static_cast<double>(rounded(std::vector<float>(kColumns, 1.0F)).front());
    on_every_level([&] {
        for (const int64_t tokens : {1, 2, 8, 30}) {
            const ggml_context_ptr context(ggml_init({size_t{4} << 20, nullptr, false}));
            ggml_context* c = context.get();
            ggml_tensor* weight =
                ggml_new_tensor_2d(c, static_cast<ggml_type>(GetParam()), kColumns, kOutputs);
            std::copy(packed.begin(), packed.end(), static_cast<std::byte*>(weight->data));
            ggml_tensor* x = ggml_new_tensor_2d(c, GGML_TYPE_F32, kColumns, tokens);
            auto* inputs = static_cast<float*>(x->data);
            for (int64_t i = 0; i < ggml_nelements(x); ++i) inputs[i] = i / kColumns % 2 == 0 ? 1.0F : -1.0F;
            PanelProduct product(1);
            ggml_tensor* got = product.of_panels(c, in_panels(c, weight), x);
            ggml_cgraph* graph = ggml_new_graph(c);
            ggml_build_forward_expand(graph, got);
            ggml_graph_compute_with_ctx(c, graph, 1);
            for (int64_t i = 0; i < ggml_nelements(got); ++i) {
                double sum = 0;
                for (int64_t k = 0; k < kColumns; ++k)
                    sum += static_cast<double>(values[static_cast<size_t>(i % kOutputs * kColumns + k)]);
                ASSERT_NEAR(static_cast<const float*>(got->data)[i],
                            i / kOutputs % 2 == 0 ? one * sum : -one * sum, 1e-3)
                    << i;
            }
        }
    });
}

TEST_P(PanelProductTest, OfATokenIsTheSameInAnyCompany) {
    on_every_level([&] {
        constexpr int64_t kColumns = 576, kOutputs = 88, kTokens = 41;
        const ggml_context_ptr context(ggml_init({size_t{32} << 20, nullptr, false}));
        ggml_context* c = context.get();
        std::vector<float> values;
        ggml_tensor* panels = in_panels(c, weight(c, kColumns, kOutputs, values));
        ggml_tensor* x = tokens_of(c, kColumns, kTokens);
        PanelProduct product(2);
        ggml_cgraph* graph = ggml_new_graph(c);
        const auto multiplied = [&](int64_t first, int64_t count) {
            ggml_tensor* node = product.of_panels(
                c, panels,
                ggml_view_2d(c, x, kColumns, count, x->nb[1], static_cast<size_t>(first) * x->nb[1]));
            ggml_build_forward_expand(graph, node);
            return node;
        };
        ggml_tensor* together = multiplied(0, kTokens);
        std::map<int64_t, ggml_tensor*> parts;
        for (int64_t first = 0, count = 1; first < kTokens; first += count++) {
            count = std::min(count, kTokens - first);
            parts[first] = multiplied(first, count);
        }
        ggml_graph_compute_with_ctx(c, graph, 2);
        for (const auto& [first, part] : parts) {
            EXPECT_EQ(memcmp(part->data, static_cast<const float*>(together->data) + first * kOutputs,
                             ggml_nbytes(part)),
                      0)
                << first;
        }
    });
}

// Shared heads: ranges of panels of matrices of several types.
TEST_P(PanelProductTest, RunsOfRowsAreThoseOfTheirMatrices) {
    if (!supported()) GTEST_SKIP() << "this CPU has no products of the type";
    constexpr int64_t kColumns = 576, kOutputs = 256, kTokens = 21;
    const ggml_context_ptr context(ggml_init({size_t{32} << 20, nullptr, false}));
    ggml_context* c = context.get();
    std::vector<float> values;
    ggml_tensor* own = in_panels(c, weight(c, kColumns, kOutputs, values));
    ggml_tensor* other = ggml_new_tensor_2d(c, GGML_TYPE_Q8_0, kColumns, 64);
    const auto packed = quantize(DType::Q8_0, random_floats(kColumns * 64, 7), kColumns);
    std::copy(packed.begin(), packed.end(), static_cast<std::byte*>(other->data));
    other = in_panels(c, other);
    ggml_tensor* x = tokens_of(c, kColumns, kTokens);
    const int64_t fold = own->ne[0] / kColumns, height = row_panels::kRows * fold, last = kOutputs / height,
                  groups = kColumns / kInputGroup;
    // The last rows of `own`, two panels of `other`, and the first rows of `own`.
    const std::vector<PanelRun> runs = {
        {own, fold, {last - 1, last}, {0, groups}, 0, 0, false},
        {other, 1, {1, 3}, {0, groups}, height, 0, false},
        {own, fold, {0, 1}, {0, groups}, height + 32, 0, false},
    };
    PanelProduct product(2);
    ggml_cgraph* graph = ggml_new_graph(c);
    for (const int64_t tokens : {int64_t{3}, kTokens}) {
        ggml_tensor* some = ggml_view_2d(c, x, kColumns, tokens, x->nb[1], 0);
        ggml_tensor *got = product.of_runs(c, runs, 2 * height + 32, some),
                    *whole = product.of_panels(c, own, some),
                    *whole_other = product.of_panels(c, other, some);
        for (ggml_tensor* node : {got, whole, whole_other}) ggml_build_forward_expand(graph, node);
        ggml_graph_compute_with_ctx(c, graph, 2);
        for (int64_t t = 0; t < tokens; ++t) {
            const auto row = [&](const ggml_tensor* of, int64_t r) {
                return static_cast<const float*>(of->data)[t * of->ne[0] + r];
            };
            for (int64_t r = 0; r < height; ++r) {
                EXPECT_EQ(row(got, r), row(whole, kOutputs - height + r)) << t << ", " << r;
                EXPECT_EQ(row(got, height + 32 + r), row(whole, r)) << t << ", " << r;
            }
            for (int64_t r = 0; r < 32; ++r)
                EXPECT_EQ(row(got, height + r), row(whole_other, 16 + r)) << t << ", " << r;
        }
    }
}

// Heads of an output projection: groups of columns of several matrices, whose products are added.
TEST_P(PanelProductTest, RunsOfColumnsAddUp) {
    if (!supported()) GTEST_SKIP() << "this CPU has no products of the type";
    constexpr int64_t kColumns = 512, kOutputs = 40, kTokens = 13;
    const ggml_context_ptr context(ggml_init({size_t{32} << 20, nullptr, false}));
    ggml_context* c = context.get();
    std::vector<float> values;
    ggml_tensor* own = in_panels(c, weight(c, kColumns, kOutputs, values));
    // Columns 192 to 255, 0 to 95 and 448 to 511.
    const std::vector<std::pair<int64_t, int64_t>> parts = {{192, 64}, {0, 96}, {448, 64}};
    std::vector<PanelRun> runs;
    int64_t width = 0;
    for (const auto& [first, count] : parts) {
        runs.push_back({own,
                        1,
                        {0, 3},
                        {first / kInputGroup, (first + count) / kInputGroup},
                        0,
                        width / kInputGroup,
                        width > 0});
        width += count;
    }
    std::vector<float> inputs;
    ggml_tensor* x = tokens_of(c, width, kTokens, &inputs);
    PanelProduct product(2);
    ggml_cgraph* graph = ggml_new_graph(c);
    ggml_tensor *all = product.of_runs(c, runs, kOutputs, x),
                *few = product.of_runs(c, runs, kOutputs, ggml_view_2d(c, x, width, 2, x->nb[1], 0));
    for (ggml_tensor* node : {all, few}) ggml_build_forward_expand(graph, node);
    ggml_graph_compute_with_ctx(c, graph, 2);
    EXPECT_EQ(memcmp(all->data, few->data, ggml_nbytes(few)), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
        const std::vector<float> token =
            rounded(std::span(inputs).subspan(static_cast<size_t>(t * width), static_cast<size_t>(width)));
        for (int64_t r = 0; r < kOutputs; ++r) {
            double sum = 0, size = 0;
            size_t at = 0;
            for (const auto& [first, count] : parts) {
                for (int64_t i = 0; i < count; ++i, ++at) {
                    const double part =
                        static_cast<double>(values[static_cast<size_t>(r * kColumns + first + i)]) *
                        static_cast<double>(token[at]);
                    sum += part;
                    size += std::abs(part);
                }
            }
            ASSERT_NEAR(static_cast<const float*>(all->data)[t * kOutputs + r], sum, 4e-6 * size + 1e-6)
                << t << ", " << r;
        }
    }
}

TEST_P(PanelProductTest, RowsAreReadBack) {
    for (const int64_t rows : {8, 16, 40, 88}) {
        const ggml_context_ptr context(ggml_init({size_t{8} << 20, nullptr, false}));
        std::vector<float> values;
        const ggml_tensor* w = weight(context.get(), 576, rows, values);
        const ggml_tensor* panels = in_panels(context.get(), w);
        const row_panels::Matrix matrix{w->type, static_cast<const std::byte*>(panels->data), w->ne[0],
                                        w->ne[1], w->ne[0] / 576};
        std::vector<std::byte> row(matrix.row_bytes());
        for (int64_t r = 0; r < w->ne[1]; ++r) {
            row_panels::read_row(matrix, r, row.data());
            EXPECT_EQ(
                memcmp(row.data(), static_cast<const std::byte*>(w->data) + static_cast<size_t>(r) * w->nb[1],
                       row.size()),
                0)
                << r << " of " << rows;
        }
    }
}

}  // namespace
}  // namespace refold
