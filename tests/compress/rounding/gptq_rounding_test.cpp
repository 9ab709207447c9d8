// Rounding with the inputs in mind.
#include "compress/refit/gptq_rounding.h"

#include <gtest/gtest.h>

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

TEST(FeedbackRounding, ErrsLessThanTheNearestValues) {
    const auto x = correlated_rows(), weights = random_values(kInputs * kOutputs, 4);
    const LeastSquares sums = sums_of(x, weights);
    for (const DType type : {DType::Q4_0, DType::Q4_1, DType::Q5_1, DType::Q8_0}) {
        const auto rounded = gptq_rounded(weights, {sums.gram(), kInputs, kRounded}, type);
        EXPECT_LT(sums.error(rounded), 0.5 * sums.error(nearest(weights, type))) << name(type);
        // The values are exact in the type: rounding again changes nothing.
        EXPECT_LE(relative_difference(nearest(rounded, type), rounded), 1e-6) << name(type);
    }
}

TEST(FeedbackRounding, LeavesWhatIsRoundAlone) {
    const auto x = correlated_rows();
    const auto weights = nearest(random_values(kInputs * kOutputs, 5), DType::Q8_0);
    const LeastSquares sums = sums_of(x, weights);
    const auto rounded = gptq_rounded(weights, {sums.gram(), kInputs, kRounded}, DType::Q8_0);
    EXPECT_LE(relative_difference(rounded, weights), 1e-6);
}

// Without correlations no error can be corrected.
TEST(FeedbackRounding, OfUncorrelatedInputsIsTheNearestValues) {
    std::vector<double> gram(kInputs * kInputs);
    for (size_t i = 0; i < kInputs; ++i) gram[i * (kInputs + 1)] = 2;
    const auto weights = random_values(kInputs * kOutputs, 6);
    EXPECT_EQ(gptq_rounded(weights, {gram, kInputs, kRounded}, DType::Q4_0), nearest(weights, DType::Q4_0));
}

}  // namespace
}  // namespace refold
