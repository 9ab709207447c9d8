// Kernels for few queries on rows of Q8_0 against the numbers of the rows in double precision.
#include "engine/ggml/attention_kernels.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/cpu_level.h"

namespace refold {
namespace {

using attention::CachedRows;
using attention::ChunkWeights;
using attention::kRowBlock;

constexpr int64_t kBlockBytes = 34;
constexpr int64_t kDims[] = {32, 64, 96, 128, 256, 544}, kCounts[] = {1, 3, 4, 5, 31, 200};
// Where the rows begin in their chunk.
constexpr int64_t kFirst = 19;
constexpr int64_t kStride = attention::ChunkWeights::kStride;
// Queries and weights are rounded to 15 bits and a sign at least: by half a step of the largest one.
constexpr double kRounding = 0.5 / 32639, kFloat = 1e-6;

// Rows with gaps between them, which hold NaN.
class Blocks {
public:
    Blocks(int64_t count, int64_t head_dim, bool extreme = false)
        : count_(count),
          head_dim_(head_dim),
          stride_(static_cast<size_t>(head_dim / kRowBlock * kBlockBytes) + 6),
          bytes_(static_cast<size_t>(count) * stride_, char{-1}) {
        std::uniform_int_distribution<int> number(-127, 127);
        std::uniform_real_distribution<float> scale(0.001F, 0.02F);
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t b = 0; b < head_dim / kRowBlock; ++b) {
                char* block = at(i, b);
                const ggml_fp16_t half = ggml_fp32_to_fp16(extreme ? 1.0F : scale(random_));
                memcpy(block, &half, sizeof(half));
                for (int64_t c = 0; c < kRowBlock; ++c)
                    block[2 + c] = static_cast<char>(extreme ? 127 : number(random_));
            }
        }
    }

    CachedRows rows() const { return {bytes_.data(), stride_, count_, head_dim_, attention::RowType::q8_0}; }
    double scale(int64_t row, int64_t column) const {
        ggml_fp16_t half;
        memcpy(&half, at(row, column / kRowBlock), sizeof(half));
        return ggml_fp16_to_fp32(half);
    }
    int quant(int64_t row, int64_t column) const {
        return static_cast<int8_t>(at(row, column / kRowBlock)[2 + column % kRowBlock]);
    }
    double number(int64_t row, int64_t column) const { return scale(row, column) * quant(row, column); }

private:
    const char* at(int64_t row, int64_t block) const {
        return bytes_.data() + static_cast<size_t>(row) * stride_ + block * kBlockBytes;
    }
    char* at(int64_t row, int64_t block) { return const_cast<char*>(std::as_const(*this).at(row, block)); }

    int64_t count_, head_dim_;
    size_t stride_;
    std::vector<char> bytes_;
    std::mt19937 random_{3};
};

std::vector<float> normal_numbers(int64_t count, float spread) {
    std::mt19937 random(8);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = normal(random);
    return out;
}

struct Rules {
    float softcap;
    bool alibi;
};

ChunkWeights scores_of(const Blocks& keys, const float* queries, const float* slopes, int64_t heads,
                       float cap) {
    ChunkWeights out;
    std::fill_n(&out.weights[0][0], sizeof(out.weights) / sizeof(float), NAN);
    attention::score_few(keys.rows(), kFirst, {queries, heads, slopes, kFirst + keys.rows().count + 2}, cap,
                         out);
    return out;
}

// The tile of a row of keys.
int64_t tile_of(int64_t key) { return (kFirst + key) / attention::kTileKeys; }

void check_scores(const Blocks& keys, const Rules& rules) {
    const CachedRows rows = keys.rows();
    const float scale = 1.0F / std::sqrt(static_cast<float>(rows.head_dim)),
                slopes[] = {0.01F, 0.1F, 0.5F, 0.2F};
    const attention::ScoreRules score_rules(scale, rules.softcap);
    auto queries = normal_numbers(attention::kHeadsPerPass * rows.head_dim, 2 * score_rules.factor);
    const auto of = [&](int64_t first, int64_t heads) {
        return scores_of(keys, queries.data() + first * rows.head_dim, rules.alibi ? slopes + first : nullptr,
                         heads, score_rules.cap);
    };
    const ChunkWeights all = of(0, attention::kHeadsPerPass);
    for (int64_t h = 0; h < attention::kHeadsPerPass; ++h) {
        std::vector<double> expected, errors;
        for (int64_t i = 0; i < rows.count; ++i) {
            double product = 0, error = 0;
            for (int64_t first = 0; first < rows.head_dim; first += kRowBlock) {
                const float* query = queries.data() + h * rows.head_dim + first;
                double largest = 0, sum = 0;
                for (int64_t c = 0; c < kRowBlock; ++c) {
                    const double key = keys.number(i, first + c);
                    product += query[c] * key;
                    error += kFloat * std::abs(query[c] * key);
                    largest = std::max(largest, std::abs(static_cast<double>(query[c])));
                    sum += std::abs(key);
                }
                error += kRounding * largest * sum;
            }
            // In base 2.
            double score = product;
            if (rules.softcap > 0) {
                score = score_rules.cap * std::tanh(product);
                error *= score_rules.cap;
            }
            if (rules.alibi) score -= slopes[h] * static_cast<double>(rows.count + 2 - i);
            expected.push_back(score);
            errors.push_back(error + kFloat * std::abs(score));
        }
        const double error = *std::max_element(errors.begin(), errors.end());
        double sum = 0, largest = -INFINITY;
        for (int64_t i = 0; i < rows.count; ++i) {
            const auto at = static_cast<size_t>(i);
            if (i == 0 || tile_of(i) != tile_of(i - 1)) {
                const int64_t tile = tile_of(i);
                const double before = largest;
                for (int64_t j = i; j < rows.count && tile_of(j) == tile; ++j)
                    largest = std::max(largest, expected[static_cast<size_t>(j)]);
                EXPECT_NEAR(all.tile_maximum[h][tile], largest, error);
                EXPECT_NEAR(all.factor[h][tile], std::exp2(before - largest), 2 * error + kFloat);
                sum *= all.factor[h][tile];
            }
            const float got = all.weights[h][kFirst + i];
            const double weight = std::exp2(expected[at] - largest);
            sum += got;
            ASSERT_NEAR(got, weight, weight * (std::exp2(errors[at] + error) - 1 + kFloat) + 1e-30)
                << "key " << i << " of " << rows.count << ", head " << h << ", " << rows.head_dim;
        }
        EXPECT_NEAR(all.maximum[h], largest, error);
        EXPECT_NEAR(all.sum[h], sum, 1e-5 * sum);
    }
    // Heads do not depend on those beside them.
    for (int64_t h = 0; h < attention::kHeadsPerPass; ++h) {
        for (int64_t heads = 1; heads <= attention::kHeadsPerPass - h; ++heads) {
            const ChunkWeights some = of(h, heads);
            for (int64_t i = 0; i < heads; ++i) {
                EXPECT_EQ(memcmp(some.weights[i] + kFirst, all.weights[h + i] + kFirst,
                                 static_cast<size_t>(rows.count) * sizeof(float)),
                          0)
                    << h << " " << heads;
            }
        }
    }
}

// At every CPU level.
class AttentionKernels : public testing::TestWithParam<std::string> {
protected:
    void SetUp() override { set_cpu_level(GetParam()); }
    void TearDown() override { set_cpu_level(cpu_levels().front()); }
};
INSTANTIATE_TEST_SUITE_P(Levels, AttentionKernels, testing::ValuesIn(cpu_levels()),
                         [](const auto& level) { return level.param; });

TEST_P(AttentionKernels, ScoresOfBlocksAreThoseOfTheirNumbers) {
    for (const int64_t head_dim : kDims) {
        for (const int64_t count : kCounts) {
            const Blocks keys(count, head_dim);
            for (const Rules& rules : {Rules{0, false}, Rules{3, false}, Rules{0, true}, Rules{2, true}})
                check_scores(keys, rules);
        }
    }
}

void check_values(const Blocks& values, const ChunkWeights& weights) {
    const CachedRows rows = values.rows();
    const int64_t out_stride = rows.head_dim + 2;
    const auto of = [&](int64_t first, int64_t heads) {
        ChunkWeights some;
        for (int64_t h = 0; h < heads; ++h) {
            std::copy_n(weights.weights[first + h], kStride, some.weights[h]);
            std::copy_n(weights.factor[first + h], attention::kChunkTiles, some.factor[h]);
        }
        std::vector<float> out(static_cast<size_t>(heads * out_stride), 7.0F);
        attention::weight_few(rows, kFirst, heads, some, out.data(), out_stride);
        return out;
    };
    // Of a row in the result: its weight, times the factors of the tiles after its own.
    const auto weight_of = [&](int64_t h, int64_t i) {
        double weight = weights.weights[h][kFirst + i];
        for (int64_t tile = tile_of(i) + 1; tile <= tile_of(rows.count - 1); ++tile)
            weight *= weights.factor[h][tile];
        return weight;
    };
    const auto all = of(0, attention::kHeadsPerPass);
    for (int64_t h = 0; h < attention::kHeadsPerPass; ++h) {
        for (int64_t c = 0; c < rows.head_dim; ++c) {
            double expected = 0, error = 0, largest = 0, sum = 0;
            for (int64_t i = 0; i < rows.count; ++i) {
                const double weight = weight_of(h, i);
                expected += weight * values.number(i, c);
                error += kFloat * std::abs(weight * values.number(i, c));
                largest = std::max(largest, weight * values.scale(i, c));
                sum += std::abs(values.quant(i, c));
            }
            ASSERT_NEAR(all[static_cast<size_t>(h * out_stride + c)], expected,
                        error + kRounding * largest * sum)
                << "column " << c << " of " << rows.head_dim << ", head " << h << ", " << rows.count
                << " rows";
        }
        EXPECT_EQ(all[static_cast<size_t>(h * out_stride + rows.head_dim)], 7.0F);
        for (int64_t heads = 1; heads <= attention::kHeadsPerPass - h; ++heads) {
            const auto some = of(h, heads);
            EXPECT_EQ(memcmp(some.data(), all.data() + h * out_stride, some.size() * sizeof(float)), 0)
                << h << " " << heads;
        }
    }
}

ChunkWeights weights_of(int64_t count, float spread) {
    const auto numbers = normal_numbers(attention::kHeadsPerPass * count, spread);
    ChunkWeights out;
    for (int64_t h = 0; h < attention::kHeadsPerPass; ++h) {
        std::fill_n(out.weights[h], kStride, NAN);
        for (int64_t i = 0; i < count; ++i)
            out.weights[h][kFirst + i] = std::exp2(-std::abs(numbers[static_cast<size_t>(h * count + i)]));
        out.factor[h][0] = 0;
        std::fill_n(out.factor[h] + 1, attention::kChunkTiles - 1, 0.25F);
    }
    return out;
}

TEST_P(AttentionKernels, WeightedBlocksAreThoseOfTheirNumbers) {
    for (const int64_t head_dim : kDims) {
        for (const int64_t count : kCounts) {
            const Blocks values(count, head_dim);
            for (const float spread : {1.0F, 40.0F}) check_values(values, weights_of(count, spread));
        }
    }
}

// The largest sums of products, and none.
TEST_P(AttentionKernels, WeightedBlocksOfTheLargestNumbers) {
    const Blocks values(200, 64, true);
    for (const float spread : {0.0F, 1e9F}) check_values(values, weights_of(200, spread));
}

}  // namespace
}  // namespace refold
