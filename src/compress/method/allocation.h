// The best choice among options for many items under one budget: a multiple-choice knapsack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace refold {

struct AllocationOption {
    uint64_t bytes = 0;
    double cost = 0;  // what is lost, in any unit that adds up
};
using AllocationItem = std::vector<AllocationOption>;  // at least one option

struct Allocation {
    std::vector<size_t> chosen;  // by item, an index into its options
    uint64_t bytes = 0;
    double cost = 0;
};

// One option of every item, with small cost and at most `budget` bytes. Options on the lower convex hull of
// each item are taken in the order of the cost that a byte saves, which is optimal for the budgets where a
// step ends (Lagrange multipliers); what is left of the budget is then spent on any single changes that fit,
// the best ones first. That is done for every option of the item whose options differ most, which may be as
// large as all others together. Nothing when the smallest options are larger than the budget. The same input
// gives the same result.
std::optional<Allocation> allocate(std::span<const AllocationItem> items, uint64_t budget);

// Bytes of the smallest options.
uint64_t smallest_allocation(std::span<const AllocationItem> items);

}  // namespace refold
