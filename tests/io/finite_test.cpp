// NaN, infinity and numbers too large for a type: found in stored tensors, refused when they are packed.
#include "io/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/code_of.h"

namespace refold {
namespace {

constexpr int64_t kColumns = 512;
constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

// All that are written: see DType.
std::vector<DType> all_types() {
    std::vector<DType> out;
    for (const uint32_t id :
         {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 29, 30, 39})
        out.push_back(static_cast<DType>(id));
    return out;
}
bool has_range_of_float(DType type) {
    return type == DType::F32 || type == DType::BF16 || type == DType::MXFP4;
}

std::vector<float> waves(size_t rows, float largest) {
    std::vector<float> out(rows * kColumns);
    for (size_t i = 0; i < out.size(); ++i)
        out[i] = std::sin(static_cast<float>(i * i % 97) * 0.7F) * largest;
    return out;
}

// As the type needs one.
std::vector<float> importance_for(DType type) {
    return needs_importance(type) ? std::vector<float>(kColumns, 1.0F) : std::vector<float>();
}

class Types : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(All, Types, testing::ValuesIn(all_types()),
                         [](const auto& test) { return name(test.param); });

void expect_refused(DType type, size_t rows, size_t at, float bad, int threads) {
    auto values = waves(rows, 0.1F);
    values[at] = bad;
    const std::string place = fmt::format("row {}, column {} is {}", at / kColumns, at % kColumns,
                                          std::isnan(bad) ? "nan" : fmt::format("{}", bad));
    EXPECT_EQ(code_of([&] { quantize(type, values, kColumns, importance_for(type), threads); },
                      place + ", expected a finite number"),
              ErrorCode::input);
}

TEST_P(Types, RefuseNumbersThatAreNotFinite) {
    for (const float bad : {kNan, kInfinity, -kInfinity})
        for (const size_t at : {size_t{0}, kColumns + size_t{17}, 2 * kColumns - size_t{1}})
            expect_refused(GetParam(), 2, at, bad, 1);
}

// Rows are packed in parts, by several threads.
TEST(Finite, PlacesCountFromTheFirstRow) {
    for (const int threads : {1, 3})
        expect_refused(DType::Q4_0, 600, 500 * kColumns + size_t{17}, kNan, threads);
}

// What the type holds is as exact as small numbers are; what it does not hold is refused.
TEST_P(Types, RefuseNumbersThatAreTooLarge) {
    const DType type = GetParam();
    const auto error_of = [&](float largest) {
        const auto values = waves(1, largest);
        std::vector<float> back(values.size());
        dequantize(type, quantize(type, values, kColumns, importance_for(type)), back);
        double sum = 0, all = 0;
        for (size_t i = 0; i < values.size(); ++i) {
            const double x = static_cast<double>(values[i]) / largest,
                         y = static_cast<double>(back[i]) / largest;
            sum += (x - y) * (x - y);
            all += x * x;
        }
        return std::sqrt(sum / all);
    };
    const double usual = error_of(1);
    size_t refused = 0;
    const float step = needs_importance(type) ? 1024 : 2;  // these take long
    for (float largest = 1024; std::isfinite(largest); largest *= step) {
        try {
            EXPECT_LE(error_of(largest), 1.5 * usual + 1e-6) << largest;
            EXPECT_EQ(refused, 0U) << largest;
        } catch (const NumberError& error) {
            EXPECT_NE(std::string(error.what()).find("too large for " + name(type)), std::string::npos)
                << error.what();
            ++refused;
        }
    }
    if (has_range_of_float(type)) return;
    EXPECT_GT(refused, needs_importance(type) ? 8U : 90U);
    EXPECT_EQ(
        code_of([&] { quantize(type, std::vector<float>(kColumns, 1e30F), kColumns, importance_for(type)); },
                "row 0, column 0 is 1e+30, which is too large for " + name(type)),
        ErrorCode::input);
}

TEST(Finite, FloatsRoundUpToTheLargestOnes) {
    const auto pack = [](DType type, float value) { return quantize(type, std::vector{value}, 1); };
    EXPECT_NO_THROW(pack(DType::F16, 65504));
    EXPECT_NO_THROW(pack(DType::F16, 65519));
    for (const float value : {65520.0F, 70000.0F, -70000.0F, 1e30F})
        EXPECT_EQ(code_of([&] { pack(DType::F16, value); }, "too large for F16"), ErrorCode::input);
    EXPECT_NO_THROW(pack(DType::BF16, 3.38e38F));
    EXPECT_EQ(code_of([&] { pack(DType::BF16, std::numeric_limits<float>::max()); }, "too large for BF16"),
              ErrorCode::input);
    EXPECT_NO_THROW(pack(DType::F32, std::numeric_limits<float>::max()));
}

// The number to blame is the block's largest, although the first element of the block became infinite.
TEST(Finite, TheLargestNumberOfTheBlockIsNamed) {
    std::vector<float> values(64, 1.0F);
    values[40] = 600000;
    EXPECT_EQ(code_of([&] { quantize(DType::Q4_0, values, 32); }, "row 1, column 8 is 600000"),
              ErrorCode::input);
    values[40] = 500000;
    EXPECT_NO_THROW(quantize(DType::Q4_0, values, 32));
    values[40] = -70000;  // Q4_1 holds a block's smallest number as it is
    EXPECT_EQ(code_of([&] { quantize(DType::Q4_1, values, 32); }, "row 1, column 8 is -70000"),
              ErrorCode::input);
}

TEST(Finite, ImportanceIsChecked) {
    std::vector<float> importance(kColumns, 1.0F);
    importance[7] = kNan;
    EXPECT_EQ(code_of([&] { quantize(DType::Q4_K, waves(1, 1), kColumns, importance); },
                      "row 0, column 7 is nan, expected a finite importance"),
              ErrorCode::input);
}

// Blocks whose scale is NaN or infinity, wherever the type has scales: each byte pair that can be one is
// tried.
TEST_P(Types, StoredBlocksAreSearched) {
    const DType type = GetParam();
    const auto good = quantize(type, waves(3, 1), kColumns, importance_for(type));
    EXPECT_FALSE(first_not_finite(type, good));
    const size_t bytes = block_bytes(type);
    size_t found = 0;
    for (size_t at = 0; at + 1 < bytes; ++at) {
        for (const uint16_t half : {0x7E00, 0x7C00, 0xFC00, 0xFFFF}) {
            auto packed = good;
            const size_t block = packed.size() / bytes / 2;
            memcpy(packed.data() + block * bytes + at, &half, sizeof(half));
            std::vector<float> unpacked(3 * kColumns);
            dequantize(type, packed, unpacked);
            const auto expected = first_not_finite(unpacked);
            const auto got = first_not_finite(type, packed);
            ASSERT_EQ(got.has_value(), expected.has_value()) << at;
            if (!expected) continue;
            EXPECT_EQ(got->element, expected->element);
            ++found;
        }
    }
    EXPECT_GT(found, 0U);
}

TEST(Finite, StoredFloatsAreSearched) {
    for (const DType type : {DType::F32, DType::F16, DType::BF16}) {
        const auto zeros = quantize(type, std::vector<float>(10000), 10000);
        EXPECT_FALSE(first_not_finite(type, zeros));
        for (const size_t at : {0, 4095, 4096, 9999}) {
            auto bytes = zeros;
            const uint32_t nan = type == DType::F32 ? 0x7FC00000 : type == DType::F16 ? 0x7E00 : 0x7FC0;
            memcpy(bytes.data() + at * block_bytes(type), &nan, block_bytes(type));
            const auto found = first_not_finite(type, bytes);
            ASSERT_TRUE(found);
            EXPECT_EQ(found->element, static_cast<int64_t>(at));
            EXPECT_TRUE(std::isnan(found->value));
        }
    }
}

TEST(Finite, MessagesNameThePlace) {
    const NumberError error({25, kNan}, 10, "expected a finite number");
    EXPECT_STREQ(error.below(3).named("export", "blk.0.attn_q.weight").what(),
                 "[export] tensor 'blk.0.attn_q.weight': row 5, column 5 is nan, expected a finite number");
}

}  // namespace
}  // namespace refold
