#include "compress/method/work.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compress/method/lazy.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

constexpr Computation kFirst{"test", 1}, kSecond{"test", 2}, kOther{"other", 1};

Arrays constant(float value) { return {{"x", {{1}, {value}}}}; }

double result(Work& work, const ResultKey& key, std::span<const float> input, float value) {
    return lazy::numbers(work.results(key, input, [&] { return constant(value); }).at("x")).front();
}

TEST(Work, AResultIsFoundByComputationSettingsAndInput) {
    const TempFolder folder;
    const std::vector<float> input = {1, 2}, other = {1, 3};
    Work work(folder / "work");
    EXPECT_EQ(result(work, {kFirst, {{"rank", 3}}}, input, 1), 1);
    EXPECT_EQ(result(work, {kFirst, {{"rank", 3}}}, input, 2), 1);
    EXPECT_EQ(work.reused(), 1U);
    // Anything that differs is another result: the version too.
    EXPECT_EQ(result(work, {kSecond, {{"rank", 3}}}, input, 3), 3);
    EXPECT_EQ(result(work, {kOther, {{"rank", 3}}}, input, 4), 4);
    EXPECT_EQ(result(work, {kFirst, {{"rank", 4}}}, input, 5), 5);
    EXPECT_EQ(result(work, {kFirst, {{"seed", 3}}}, input, 6), 6);
    EXPECT_EQ(result(work, {kFirst, {{"rank", "3"}}}, input, 7), 7);
    EXPECT_EQ(result(work, {kFirst, {{"rank", 3}}}, other, 8), 8);
    EXPECT_EQ(work.reused(), 1U);
    // The order in which settings are named says nothing.
    EXPECT_EQ(result(work, {kFirst, {{"a", 1}, {"b", 2}}}, {}, 9), 9);
    EXPECT_EQ(result(work, {kFirst, {{"b", 2}, {"a", 1}}}, {}, 10), 9);
    Work again(folder / "work");
    EXPECT_EQ(result(again, {kFirst, {{"rank", 3}}}, input, 11), 1);
}

TEST(Work, DamagedResultsAreComputedAgain) {
    const TempFolder folder;
    {
        Work work(folder / "work");
        EXPECT_EQ(result(work, {kFirst}, {}, 1), 1);
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder / "work"))
        std::ofstream(entry.path()) << "no tensors";
    Work again(folder / "work");
    EXPECT_EQ(result(again, {kFirst}, {}, 2), 2);
    EXPECT_EQ(again.reused(), 0U);
}

TEST(Work, ItKnowsWhichComputationsLaterStepsDependOn) {
    Work work;
    EXPECT_EQ(work.computations(), "");
    result(work, {kSecond}, {}, 1);
    result(work, {kOther}, {}, 1);
    result(work, {kOther, {{"rank", 1}}}, {}, 1);
    EXPECT_EQ(work.computations(), "other v1, test v2");
}

}  // namespace
}  // namespace refold
