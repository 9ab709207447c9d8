#include "core/argmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace refold {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Argmax, IsTheFirstOfTheLargestValues) {
    std::mt19937 random(3);
    for (const size_t size : {1, 31, 32, 33, 100, 4095, 4096, 4097, 10000}) {
        // Few distinct values make ties.
        for (const int most : {1, 5, 1000000}) {
            std::uniform_int_distribution<int> value(-most, most);
            std::vector<float> values(size);
            for (float& v : values) v = static_cast<float>(value(random));
            EXPECT_EQ(argmax(values),
                      static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin()))
                << size << " values of at most " << most;
        }
    }
}

TEST(Argmax, FindsEveryPlace) {
    std::vector<float> values(5000, -2.0F);
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = -1.0F;
        EXPECT_EQ(argmax(values), i);
        values[i] = -2.0F;
    }
}

TEST(Argmax, LeavesOutWhatIsNoNumber) {
    EXPECT_EQ(argmax({}), 0U);
    EXPECT_EQ(argmax(std::vector{-kInfinity, -kInfinity}), 0U);
    EXPECT_EQ(argmax(std::vector{kNan, -1.0F, kNan, -0.5F, kNan}), 3U);
    EXPECT_EQ(argmax(std::vector{1.0F, kInfinity, 2.0F}), 1U);
    EXPECT_EQ(argmax(std::vector<float>(100, kNan)), 0U);
}

}  // namespace
}  // namespace refold
