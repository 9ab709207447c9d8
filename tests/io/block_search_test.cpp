// Blocks that are searched side by side hold the numbers that ggml's own search finds.
#include "io/block_search.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "io/dtype.h"

namespace refold {
namespace {

constexpr std::array kSearched = {DType::Q4_0, DType::Q4_1,   DType::Q5_0,  DType::Q5_1,
                                  DType::Q2_K, DType::Q3_K,   DType::Q4_K,  DType::Q5_K,
                                  DType::Q6_K, DType::IQ4_NL, DType::IQ4_XS};
constexpr size_t kColumns = 512;

using Floats = std::vector<float>;

std::vector<std::byte> by_ggml(DType type, const Floats& values, const Floats* importance) {
    std::vector<std::byte> out(row_bytes(type, static_cast<int64_t>(values.size())));
    ggml_quantize_chunk(static_cast<ggml_type>(type), values.data(), out.data(), 0,
                        static_cast<int64_t>(values.size() / kColumns), kColumns,
                        importance == nullptr ? nullptr : importance->data());
    return out;
}

Floats unpacked(DType type, const std::vector<std::byte>& packed, size_t count) {
    Floats out(count);
    dequantize(type, packed, out);
    return out;
}

double error_of(const Floats& got, const Floats& values, const Floats& importance, size_t first,
                size_t count) {
    double sum = 0;
    for (size_t i = first; i < first + count; ++i) {
        const double error = static_cast<double>(got[i]) - static_cast<double>(values[i]);
        sum += static_cast<double>(importance[i % kColumns]) * error * error;
    }
    return sum;
}

// Rows of several kinds: even, with large ones among small ones, of one sign, constant, zero, tiny, and huge.
Floats rows_of_all_kinds(std::mt19937& random) {
    constexpr size_t kRows = 37;
    std::normal_distribution<float> normal;
    Floats out;
    for (size_t row = 0; row < kRows; ++row) {
        for (size_t i = 0; i < kColumns; ++i) {
            const float x = normal(random);
            switch (row % 9) {
                case 0: out.push_back(0.02F * x); break;
                case 1: out.push_back(x * x * x); break;
                case 2: out.push_back(std::abs(x)); break;
                case 3: out.push_back(-1 - std::abs(x)); break;
                case 4: out.push_back(i % 64 == 5 ? 30 * x : 0.1F * x); break;
                case 5: out.push_back(i < 256 ? 0 : 0.75F); break;
                case 6: out.push_back(i % 48 < 32 ? 0 : x); break;
                case 7: out.push_back(1e-12F * x); break;
                default: out.push_back(1000 * x);
            }
        }
    }
    return out;
}

TEST(BlockSearch, FindsTheNumbersOfGgml) {
    std::mt19937 random(5);
    const Floats values = rows_of_all_kinds(random);
    std::uniform_real_distribution<float> uniform(0.05F, 4);
    for (const bool uneven : {false, true}) {
        Floats importance(kColumns);
        for (float& one : importance) one = uneven ? std::pow(uniform(random), 3.0F) : 1.0F;
        for (const DType type : kSearched) {
            SCOPED_TRACE(name(type) + (uneven ? ", uneven" : ""));
            std::vector<std::byte> packed(row_bytes(type, static_cast<int64_t>(values.size())));
            search_blocks(type, values, kColumns, importance, packed);
            const Floats got = unpacked(type, packed, values.size()),
                         wanted = unpacked(type, by_ggml(type, values, &importance), values.size()),
                         plain = unpacked(type, by_ggml(type, values, nullptr), values.size());
            const auto block = static_cast<size_t>(block_elements(type));
            const bool or_plain =
                type == DType::Q4_0 || type == DType::Q4_1 || type == DType::Q5_0 || type == DType::Q5_1;
            size_t differ = 0;
            for (size_t first = 0; first < values.size(); first += block) {
                const auto of = [&](const Floats& numbers) {
                    return error_of(numbers, values, importance, first, block);
                };
                const double best = or_plain ? std::min(of(wanted), of(plain)) : of(wanted);
                EXPECT_LE(of(got), best * (1 + 1e-5)) << "block " << first / block;
                for (size_t i = first; i < first + block; ++i) {
                    if (got[i] != wanted[i] && !(or_plain && got[i] == plain[i])) ++differ;
                }
            }
            EXPECT_EQ(differ, 0U);
        }
    }
}

TEST(BlockSearch, IsOfTypesThatAreSearched) {
    for (const DType type : kSearched) EXPECT_TRUE(has_block_search(type)) << name(type);
    for (const DType type : {DType::F32, DType::F16, DType::Q8_0, DType::MXFP4, DType::IQ2_XS, DType::IQ1_M})
        EXPECT_FALSE(has_block_search(type)) << name(type);
}

}  // namespace
}  // namespace refold
