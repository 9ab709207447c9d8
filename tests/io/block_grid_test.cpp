// The values that blocks of quantized types can hold, compared with how ggml unpacks them.
#include "io/block_grid.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace refold {
namespace {

constexpr std::array kTypes = {DType::Q4_0,   DType::Q4_1,  DType::Q5_0,  DType::Q5_1, DType::Q8_0,
                               DType::IQ4_NL, DType::MXFP4, DType::Q2_K,  DType::Q3_K, DType::Q4_K,
                               DType::Q5_K,   DType::Q6_K,  DType::IQ4_XS};

TEST(BlockGrid, WritesWhatGgmlReads) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const DType type : kTypes) {
        const BlockGrid* grid = block_grid(type);
        ASSERT_NE(grid, nullptr) << name(type);
        const auto n = static_cast<size_t>(block_elements(type));
        for (int repetition = 0; repetition < 20; ++repetition) {
            std::vector<float> values(n), scale(n), offset(n), read(n);
            for (float& value : values) value = normal(random);
            auto block = quantize(type, values, block_elements(type));
            grid->read_scales(block.data(), scale.data(), offset.data());
            std::vector<uint8_t> codes;
            for (size_t i = 0; i < n; ++i)
                codes.push_back(static_cast<uint8_t>(random() % static_cast<unsigned>(grid->codes)));
            grid->write_codes(block.data(), codes.data());
            dequantize(type, block, read);
            for (size_t i = 0; i < n; ++i) {
                const float expected = grid->value(codes[i], scale[i], offset[i]);
                ASSERT_NEAR(read[i], expected, 1e-5F * std::abs(expected) + 1e-6F)
                    << name(type) << " element " << i;
                // Levels may occur twice (MXFP4 has two zeros).
                const uint8_t nearest = grid->nearest(expected, scale[i], offset[i]);
                ASSERT_NEAR(grid->value(nearest, scale[i], offset[i]), expected,
                            1e-5F * std::abs(expected) + 1e-6F);
            }
        }
    }
}

TEST(BlockGrid, NearestValueOfAll) {
    std::mt19937 random(2);
    std::uniform_real_distribution<float> anywhere(-2, 2);
    for (const DType type : kTypes) {
        const BlockGrid* grid = block_grid(type);
        for (int repetition = 0; repetition < 200; ++repetition) {
            const float x = anywhere(random), scale = anywhere(random) / 40, offset = anywhere(random) / 10;
            const float found = grid->value(grid->nearest(x, scale, offset), scale, offset);
            for (int code = 0; code < grid->codes; ++code)
                ASSERT_LE(std::abs(found - x),
                          std::abs(grid->value(static_cast<uint8_t>(code), scale, offset) - x) + 1e-5F)
                    << name(type);
        }
    }
}

TEST(BlockGrid, NoneForPatternsAndFloats) {
    for (const DType type : {DType::IQ1_S, DType::IQ2_XXS, DType::IQ3_S, DType::F16, DType::F32})
        EXPECT_EQ(block_grid(type), nullptr);
}

}  // namespace
}  // namespace refold
