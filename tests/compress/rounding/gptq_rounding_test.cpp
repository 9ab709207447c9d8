// Rounding with the inputs in mind.
#include "compress/rounding/gptq_rounding.h"

#include <gtest/gtest.h>

#include "core/parallel.h"
#include "linalg/compare.h"
#include "linalg/least_squares.h"

namespace refold {
namespace {

constexpr int64_t kInputs = 97, kRounded = 96, kOutputs = 5, kRows = 400;

// Rows that are combinations of a few common ones, like activations; the last element is 1, for a bias.
std::vector<float> correlated_rows() {
    constexpr int64_t kCommon = 12;
    const auto common = random_values(kRows * kCommon, 1), mix = random_values(kInputs * kCommon, 2),
               own = random_values(kRows * kInputs, 3);
    std::vector<float> x;
    for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < kInputs; ++i) {
            float value = 0.1F * own[static_cast<size_t>(r * kInputs + i)];
            for (int64_t c = 0; c < kCommon; ++c)
                value +=
                    common[static_cast<size_t>(r * kCommon + c)] * mix[static_cast<size_t>(i * kCommon + c)];
            x.push_back(i < kRounded ? value + 0.5F : 1.0F);
        }
    }
    return x;
}

LeastSquares sums_of(const std::vector<float>& x, const std::vector<float>& weights) {
    std::vector<float> y;
    for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t o = 0; o < kOutputs; ++o) {
            double sum = 0;
            for (int64_t i = 0; i < kInputs; ++i)
                sum += static_cast<double>(x[static_cast<size_t>(r * kInputs + i)]) *
                       static_cast<double>(weights[static_cast<size_t>(o * kInputs + i)]);
            y.push_back(static_cast<float>(sum));
        }
    }
    LeastSquares sums(kInputs, kOutputs);
    sums.add(kRows, x.data(), y.data());
    return sums;
}

// Rounds to nearest; columns from kRounded on are unchanged.
std::vector<float> nearest(std::vector<float> weights, DType type) {
    for (int64_t o = 0; o < kOutputs; ++o) {
        const std::span row = std::span(weights).subspan(static_cast<size_t>(o * kInputs), kRounded);
        dequantize(type, quantize(type, row, kRounded), row);
    }
    return weights;
}

// Values of the packed columns.
std::vector<float> unpacked(const Rounded& rounded, DType type) {
    std::vector<float> out(static_cast<size_t>(kOutputs * kRounded));
    dequantize(type, rounded.packed, out);
    return out;
}

std::vector<float> first_columns(const std::vector<float>& weights) {
    std::vector<float> out;
    for (int64_t o = 0; o < kOutputs; ++o)
        out.insert(out.end(), weights.begin() + o * kInputs, weights.begin() + o * kInputs + kRounded);
    return out;
}

TEST(GptqRounding, ErrsLessThanTheNearestValues) {
    const auto x = correlated_rows(), weights = random_values(kInputs * kOutputs, 4);
    const LeastSquares sums = sums_of(x, weights);
    for (const DType type :
         {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::IQ4_NL, DType::MXFP4}) {
        const Rounded rounded = gptq_rounded(weights, {sums.gram(), kInputs, kRounded}, type);
        EXPECT_LT(sums.error(rounded.values), 0.3 * sums.error(nearest(weights, type))) << name(type);
        EXPECT_EQ(first_columns(rounded.values), unpacked(rounded, type)) << name(type);
    }
}

// The same bits for any number of threads, and for rows alone.
TEST(GptqRounding, RowsAreRoundedByThemselves) {
    const auto x = correlated_rows();
    const LeastSquares sums = sums_of(x, random_values(kInputs * kOutputs, 4));
    constexpr size_t kMany = 200;
    const auto weights = random_values(kInputs * kMany, 9);
    for (const DType type : {DType::Q4_0, DType::Q4_K}) {
        // Rows of 96 are folded by 8 for blocks of 256.
        const auto some = static_cast<size_t>(fold(type, kRounded));
        const RoundingInputs inputs{sums.gram(), kInputs, kRounded};
        std::vector<Rounded> by_threads;
        for (const int threads : {1, 3}) {
            set_default_threads(threads);
            by_threads.push_back(gptq_rounded(weights, inputs, type));
        }
        set_default_threads(0);
        EXPECT_EQ(by_threads[0].packed, by_threads[1].packed) << name(type);
        EXPECT_EQ(by_threads[0].values, by_threads[1].values) << name(type);
        const Rounded last = gptq_rounded(std::span(weights).last(some * kInputs), inputs, type);
        EXPECT_LE(relative_difference(last.values, std::span(by_threads[0].values).last(some * kInputs)),
                  1e-3)
            << name(type);
    }
}

TEST(GptqRounding, LeavesWhatIsRoundAlone) {
    const auto x = correlated_rows();
    const auto weights = nearest(random_values(kInputs * kOutputs, 5), DType::Q8_0);
    const LeastSquares sums = sums_of(x, weights);
    const Rounded rounded = gptq_rounded(weights, {sums.gram(), kInputs, kRounded}, DType::Q8_0);
    EXPECT_LE(relative_difference(rounded.values, weights), 1e-3);
}

// Without correlations no error can be corrected.
TEST(GptqRounding, OfUncorrelatedInputsIsTheNearestValues) {
    std::vector<double> gram(kInputs * kInputs);
    for (size_t i = 0; i < kInputs; ++i) gram[i * (kInputs + 1)] = 2;
    const auto weights = random_values(kInputs * kOutputs, 6);
    const RoundingInputs inputs{gram, kInputs, kRounded};
    // The scales are half floats, and the searches for them sum in another order.
    EXPECT_LE(relative_difference(gptq_rounded(weights, inputs, DType::Q4_0).values,
                                  nearest_rounded(weights, inputs, DType::Q4_0).values),
              1e-3);
}

// The last column, which is not rounded, corrects the errors of all others.
TEST(GptqRounding, ColumnsThatStayExactTakeUpErrors) {
    const auto x = correlated_rows(), weights = random_values(kInputs * kOutputs, 7);
    const LeastSquares sums = sums_of(x, weights);
    Rounded rounded = gptq_rounded(weights, {sums.gram(), kInputs, kRounded}, DType::Q4_0);
    const double error = sums.error(rounded.values);
    for (int64_t o = 0; o < kOutputs; ++o)
        rounded.values[static_cast<size_t>((o + 1) * kInputs - 1)] =
            weights[static_cast<size_t>((o + 1) * kInputs - 1)];
    EXPECT_LT(error, sums.error(rounded.values));
}

// Rows of whole large blocks: the types of 256 elements, and those that are rounded block by block.
TEST(GptqRounding, OfLargeBlocks) {
    constexpr int64_t kWidth = 512, kFew = 3, kMany = 700;
    const auto common = random_values(kMany * 20, 11), mix = random_values(kWidth * 20, 12),
               own = random_values(kMany * kWidth, 13), weights = random_values(kFew * kWidth, 14);
    std::vector<float> x;
    for (int64_t r = 0; r < kMany; ++r) {
        for (int64_t i = 0; i < kWidth; ++i) {
            float value = 0.3F * own[static_cast<size_t>(r * kWidth + i)];
            for (int64_t c = 0; c < 20; ++c)
                value += common[static_cast<size_t>(r * 20 + c)] * mix[static_cast<size_t>(i * 20 + c)];
            x.push_back(value);
        }
    }
    LeastSquares sums(kWidth, kFew);
    std::vector<float> y;
    for (int64_t r = 0; r < kMany; ++r) {
        for (int64_t o = 0; o < kFew; ++o) {
            double sum = 0;
            for (int64_t i = 0; i < kWidth; ++i)
                sum += static_cast<double>(x[static_cast<size_t>(r * kWidth + i)]) *
                       static_cast<double>(weights[static_cast<size_t>(o * kWidth + i)]);
            y.push_back(static_cast<float>(sum));
        }
    }
    sums.add(kMany, x.data(), y.data());
    const RoundingInputs inputs{sums.gram(), kWidth, kWidth};
    for (const DType type :
         {DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::IQ4_XS}) {
        const double feedback = sums.error(gptq_rounded(weights, inputs, type).values),
                     to_nearest = sums.error(nearest_rounded(weights, inputs, type).values);
        EXPECT_LT(feedback, 0.6 * to_nearest) << name(type);
    }
    for (const DType type : {DType::IQ2_XXS, DType::IQ3_XXS, DType::IQ3_S}) {
        const double feedback = sums.error(gptq_rounded(weights, inputs, type).values),
                     to_nearest = sums.error(nearest_rounded(weights, inputs, type).values);
        EXPECT_LT(feedback, to_nearest) << name(type);
    }
}

// Rows of 96 numbers and a bias, eight of them in three blocks of 256.
TEST(GptqRounding, FoldsRowsThatAreNoWholeBlocks) {
    constexpr int64_t kFolded = 16;
    const auto x = correlated_rows(), weights = random_values(kInputs * kFolded, 4);
    const LeastSquares sums = sums_of(x, random_values(kInputs * kOutputs, 5));
    const RoundingInputs inputs{sums.gram(), kInputs, kRounded};
    const auto error = [&](const Rounded& rounded) {
        double sum = 0;
        for (int64_t o = 0; o < kFolded; ++o) {
            for (int64_t i = 0; i < kInputs; ++i) {
                for (int64_t j = 0; j < kInputs; ++j) {
                    const auto of = [&](int64_t at) {
                        const auto index = static_cast<size_t>(o * kInputs + at);
                        return static_cast<double>(rounded.values[index]) -
                               static_cast<double>(weights[index]);
                    };
                    sum += of(i) * of(j) * sums.gram()[static_cast<size_t>(i * kInputs + j)];
                }
            }
        }
        return sum;
    };
    for (const DType type : {DType::Q2_K, DType::Q3_K, DType::Q4_K, DType::Q6_K, DType::IQ4_XS}) {
        const Rounded rounded = gptq_rounded(weights, inputs, type),
                      nearest = nearest_rounded(weights, inputs, type);
        EXPECT_LT(error(rounded), 0.6 * error(nearest)) << name(type);
        std::vector<float> unpacked(static_cast<size_t>(kFolded * kRounded));
        dequantize(type, rounded.packed, unpacked);
        for (int64_t o = 0; o < kFolded; ++o) {
            for (int64_t i = 0; i < kRounded; ++i)
                ASSERT_EQ(rounded.values[static_cast<size_t>(o * kInputs + i)],
                          unpacked[static_cast<size_t>(o * kRounded + i)])
                    << name(type) << ", row " << o << ", column " << i;
        }
    }
}

}  // namespace
}  // namespace refold
