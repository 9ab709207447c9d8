// Rounding to nearest, with scales for an importance matrix.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "io/dtype.h"

namespace refold {
namespace {

constexpr int64_t kColumns = 64;

std::vector<float> waves(size_t count) {
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = std::sin(static_cast<float>(i * i % 97) * 0.7F) * 0.2F;
    return out;
}

std::vector<float> rounded(DType type, const std::vector<float>& values,
                           std::span<const float> importance = {}) {
    std::vector<float> out(values.size());
    dequantize(type, quantize(type, values, kColumns, importance), out);
    return out;
}

double weighted_error(std::span<const float> a, std::span<const float> b, std::span<const float> importance) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const auto e = static_cast<double>(a[i] - b[i]);
        sum += static_cast<double>(importance[i % importance.size()]) * e * e;
    }
    return sum;
}

std::vector<float> uneven_importance() {
    std::vector<float> out(kColumns);
    for (size_t i = 0; i < out.size(); ++i) out[i] = i % 5 == 0 ? 20.0F : 0.1F;
    return out;
}

TEST(Quantize, NoBlockIsWorseThanPlainRounding) {
    const auto values = waves(64 * kColumns), importance = uneven_importance();
    for (const DType type : {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1}) {
        const auto searched = rounded(type, values, importance), plain = rounded(type, values);
        const auto block = static_cast<size_t>(block_elements(type));
        const auto error_of = [&](const std::vector<float>& out, size_t first) {
            return weighted_error(std::span(out).subspan(first, block),
                                  std::span(values).subspan(first, block),
                                  std::span(importance).subspan(first % kColumns, block));
        };
        for (size_t first = 0; first < values.size(); first += block)
            EXPECT_LE(error_of(searched, first), error_of(plain, first) * 1.000001) << name(type) << first;
    }
}

// Rows are packed in parts, the last one shorter; folded rows stay together.
TEST(Quantize, ThreadsAndPartsDoNotChangeTheResult) {
    constexpr size_t kRows = 2500, kFew = 100;  // few: one part
    const auto values = waves(kRows * kColumns), importance = uneven_importance();
    for (const DType type : {DType::Q4_0, DType::Q6_K, DType::IQ2_XXS, DType::F16}) {
        std::vector<std::byte> pieces;
        for (size_t row = 0; row < kRows; row += kFew) {
            const auto some = std::span(values).subspan(row * kColumns, kFew * kColumns);
            std::ranges::copy(quantize(type, some, kColumns, importance), std::back_inserter(pieces));
        }
        EXPECT_EQ(quantize(type, values, kColumns, importance), pieces) << name(type);
        EXPECT_EQ(quantize(type, values, kColumns, importance, 3), pieces) << name(type);
    }
}

TEST(Quantize, IsNearerByImportanceThanWithout) {
    const auto values = waves(16 * kColumns), importance = uneven_importance();
    for (const DType type : {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q6_K}) {
        EXPECT_LT(weighted_error(rounded(type, values, importance), values, importance),
                  weighted_error(rounded(type, values), values, importance))
            << name(type);
    }
}

}  // namespace
}  // namespace refold
