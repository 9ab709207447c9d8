// Options under a budget, compared with all combinations.
#include "compress/method/allocation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace refold {
namespace {

double best_of_all(const std::vector<AllocationItem>& items, uint64_t budget, size_t from = 0) {
    if (from == items.size()) return 0;
    double best = std::numeric_limits<double>::infinity();
    for (const AllocationOption& option : items[from]) {
        if (option.bytes <= budget)
            best = std::min(best, option.cost + best_of_all(items, budget - option.bytes, from + 1));
    }
    return best;
}

std::vector<AllocationItem> random_items(size_t count, std::mt19937& random) {
    std::vector<AllocationItem> items(count);
    for (AllocationItem& item : items) {
        for (size_t i = 0; i < 4; ++i)
            item.push_back({20 + random() % 80, static_cast<double>(random() % 1000) / 100});
    }
    return items;
}

TEST(Allocation, IsNearTheBestOfAllCombinations) {
    std::mt19937 random(1);
    double found = 0, best = 0;
    for (int repetition = 0; repetition < 200; ++repetition) {
        const auto items = random_items(6, random);
        const uint64_t smallest = smallest_allocation(items), budget = smallest + random() % 200;
        const auto out = allocate(items, budget);
        ASSERT_TRUE(out);
        EXPECT_LE(out->bytes, budget);
        uint64_t bytes = 0;
        double cost = 0;
        for (size_t i = 0; i < items.size(); ++i) {
            bytes += items[i][out->chosen[i]].bytes;
            cost += items[i][out->chosen[i]].cost;
        }
        EXPECT_EQ(bytes, out->bytes);
        EXPECT_NEAR(cost, out->cost, 1e-9);
        const double least = best_of_all(items, budget);
        EXPECT_GE(cost, least - 1e-9);
        found += cost;
        best += least;
    }
    EXPECT_LT(found, 1.1 * best);
}

// Costs as quantized types have them: a few percent from the best even with few items.
TEST(Allocation, OfConvexOptionsIsTheBestButForTheRest) {
    std::mt19937 random(2);
    std::uniform_real_distribution<double> scale(0.1, 3);
    std::vector<AllocationItem> items(8);
    for (AllocationItem& item : items) {
        const double sensitivity = scale(random);
        for (const uint64_t bits : {3, 4, 5, 6})
            item.push_back({bits * 10, sensitivity * std::pow(4.0, 3.0 - static_cast<double>(bits))});
    }
    for (uint64_t budget = 240; budget <= 480; budget += 10) {
        const auto out = allocate(items, budget);
        ASSERT_TRUE(out);
        EXPECT_LE(out->cost, best_of_all(items, budget) * 1.0001) << budget;
    }
}

// As the embedding of a small model beside its other matrices.
TEST(Allocation, OneItemMayBeAsLargeAsAllOthers) {
    std::mt19937 random(3);
    std::uniform_real_distribution<double> scale(0.1, 3);
    std::vector<AllocationItem> items(7);
    for (size_t i = 0; i < items.size(); ++i) {
        const double sensitivity = (i == 0 ? 6 : 1) * scale(random);
        for (const uint64_t bits : {3, 4, 5, 6})
            items[i].push_back(
                {bits * (i == 0 ? 60 : 10), sensitivity * std::pow(4.0, 3.0 - static_cast<double>(bits))});
    }
    for (uint64_t budget = 360; budget <= 720; budget += 10) {
        const auto out = allocate(items, budget);
        ASSERT_TRUE(out);
        EXPECT_LE(out->cost, best_of_all(items, budget) * 1.0001) << budget;
    }
}

TEST(Allocation, NothingWhereTheSmallestDoNotFit) {
    const std::vector<AllocationItem> items = {{{10, 1}, {5, 2}}, {{7, 0}}};
    EXPECT_EQ(smallest_allocation(items), 12U);
    EXPECT_FALSE(allocate(items, 11));
    ASSERT_TRUE(allocate(items, 12));
    EXPECT_EQ(allocate(items, 12)->chosen, (std::vector<size_t>{1, 0}));
    EXPECT_EQ(allocate(items, 17)->chosen, (std::vector<size_t>{0, 0}));
}

}  // namespace
}  // namespace refold
