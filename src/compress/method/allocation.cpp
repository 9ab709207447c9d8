#include "compress/method/allocation.h"

#include <algorithm>
#include <numeric>

namespace refold {
namespace {

size_t smallest(const AllocationItem& item) {
    const auto less = [](const AllocationOption& a, const AllocationOption& b) {
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
    };
    return static_cast<size_t>(std::min_element(item.begin(), item.end(), less) - item.begin());
}

// Cost saved for each byte more.
double gain(const AllocationOption& from, const AllocationOption& to) {
    return (from.cost - to.cost) / static_cast<double>(to.bytes - from.bytes);
}

struct Upgrade {
    size_t item, to;
    double gain;
};

// From the smallest option along the lower convex hull; gains fall from one to the next.
std::vector<Upgrade> upgrades_of(const AllocationItem& item, size_t number) {
    std::vector<Upgrade> out;
    size_t at = smallest(item);
    while (true) {
        std::optional<Upgrade> best;
        for (size_t i = 0; i < item.size(); ++i) {
            if (item[i].bytes <= item[at].bytes || item[i].cost >= item[at].cost) continue;
            const double g = gain(item[at], item[i]);
            if (!best || g > best->gain || (g == best->gain && item[i].bytes > item[best->to].bytes))
                best = {number, i, g};
        }
        if (!best) return out;
        out.push_back(*best);
        at = best->to;
    }
}

// Single changes that fit into what is left of the budget, the largest saving first.
void spend_rest(std::span<const AllocationItem> items, uint64_t budget, Allocation& out) {
    while (true) {
        double saved = 0;
        size_t item = 0, to = 0;
        for (size_t n = 0; n < items.size(); ++n) {
            const AllocationOption& now = items[n][out.chosen[n]];
            for (size_t i = 0; i < items[n].size(); ++i) {
                const AllocationOption& other = items[n][i];
                if (out.bytes - now.bytes + other.bytes <= budget && now.cost - other.cost > saved) {
                    saved = now.cost - other.cost;
                    item = n;
                    to = i;
                }
            }
        }
        if (saved <= 0) return;
        out.bytes = out.bytes - items[item][out.chosen[item]].bytes + items[item][to].bytes;
        out.cost -= saved;
        out.chosen[item] = to;
    }
}

// By multipliers alone: what is the best choice for some budget, and a rest of the budget.
std::optional<Allocation> by_gains(std::span<const AllocationItem> items, uint64_t budget) {
    Allocation out;
    std::vector<Upgrade> upgrades;
    for (size_t n = 0; n < items.size(); ++n) {
        out.chosen.push_back(smallest(items[n]));
        out.bytes += items[n][out.chosen[n]].bytes;
        out.cost += items[n][out.chosen[n]].cost;
        const auto own = upgrades_of(items[n], n);
        upgrades.insert(upgrades.end(), own.begin(), own.end());
    }
    if (out.bytes > budget) return std::nullopt;
    std::stable_sort(upgrades.begin(), upgrades.end(),
                     [](const Upgrade& a, const Upgrade& b) { return a.gain > b.gain; });
    for (const Upgrade& upgrade : upgrades) {
        const AllocationOption &from = items[upgrade.item][out.chosen[upgrade.item]],
                               &to = items[upgrade.item][upgrade.to];
        // Later upgrades of smaller tensors may still fit, but would be out of the order of their gains.
        if (out.bytes - from.bytes + to.bytes > budget) break;
        out.bytes += to.bytes - from.bytes;
        out.cost += to.cost - from.cost;
        out.chosen[upgrade.item] = upgrade.to;
    }
    spend_rest(items, budget, out);
    return out;
}

// Where the difference between the smallest and the largest option is the largest.
size_t widest(std::span<const AllocationItem> items) {
    const auto width = [](const AllocationItem& item) {
        const auto [least, most] = std::minmax_element(
            item.begin(), item.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
        return most->bytes - least->bytes;
    };
    return static_cast<size_t>(
        std::max_element(items.begin(), items.end(),
                         [&](const auto& a, const auto& b) { return width(a) < width(b); }) -
        items.begin());
}

}  // namespace

uint64_t smallest_allocation(std::span<const AllocationItem> items) {
    return std::accumulate(
        items.begin(), items.end(), uint64_t{0},
        [](uint64_t sum, const AllocationItem& item) { return sum + item[smallest(item)].bytes; });
}

std::optional<Allocation> allocate(std::span<const AllocationItem> items, uint64_t budget) {
    std::optional<Allocation> best = by_gains(items, budget);
    if (!best || items.empty()) return best;
    // One item may be as large as all others together, such as the embedding of a small model: then
    // multipliers leave much of a budget to be spent by single changes. So every option of it is tried.
    std::vector<AllocationItem> fixed(items.begin(), items.end());
    const size_t widest_item = widest(items);
    for (size_t i = 0; i < items[widest_item].size(); ++i) {
        fixed[widest_item] = {items[widest_item][i]};
        auto other = by_gains(fixed, budget);
        if (!other || other->cost >= best->cost) continue;
        other->chosen[widest_item] = i;
        best = std::move(other);
    }
    return best;
}

}  // namespace refold
