#include "core/argmax.h"

#include <algorithm>
#include <array>
#include <limits>

namespace refold {
namespace {

constexpr size_t kLanes = 32, kBlock = 128 * kLanes;
constexpr float kLeast = -std::numeric_limits<float>::infinity();

// Only the value, over independent lanes: compilers vectorize this loop, but not one that tracks the index.
float largest_of(std::span<const float> values) {
    std::array<float, kLanes> lanes;
    lanes.fill(kLeast);
    size_t i = 0;
    for (; i + kLanes <= values.size(); i += kLanes) {
        for (size_t l = 0; l < kLanes; ++l) lanes[l] = values[i + l] > lanes[l] ? values[i + l] : lanes[l];
    }
    float largest = *std::max_element(lanes.begin(), lanes.end());
    for (; i < values.size(); ++i) largest = values[i] > largest ? values[i] : largest;
    return largest;
}

}  // namespace

size_t argmax(std::span<const float> values) {
    std::span<const float> best;
    float largest = kLeast;
    for (size_t begin = 0; begin < values.size(); begin += kBlock) {
        const auto block = values.subspan(begin, std::min(kBlock, values.size() - begin));
        const float own = largest_of(block);
        if (own > largest) {
            largest = own;
            best = block;
        }
    }
    if (best.empty()) return 0;
    return static_cast<size_t>(std::find(best.begin(), best.end(), largest) - best.begin()) +
           static_cast<size_t>(best.data() - values.data());
}

}  // namespace refold
