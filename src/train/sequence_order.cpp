#include <numeric>
#include <random>
#include <utility>

#include "core/error.h"
#include "train/data.h"

namespace refold {
namespace {

// A uniform number below `bound`, by rejection sampling. The standard library's distributions differ between
// implementations.
uint64_t draw(std::mt19937_64& random, uint64_t bound) {
    const uint64_t incomplete = (UINT64_MAX % bound + 1) % bound;
    for (;;) {
        const uint64_t drawn = random();
        if (drawn <= UINT64_MAX - incomplete) return drawn % bound;
    }
}

// Fisher-Yates shuffle, from the back.
std::vector<int64_t> permutation(int64_t size, uint64_t seed, int64_t epoch) {
    // Combines seed and epoch; seed_seq depends on the order of its words, so (1, 2) differs from (2, 1).
    std::seed_seq words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                        static_cast<uint32_t>(epoch),
                        static_cast<uint32_t>(static_cast<uint64_t>(epoch) >> 32)};
    std::mt19937_64 random(words);
    std::vector<int64_t> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    for (uint64_t left = order.size(); left > 1; --left)
        std::swap(order[left - 1], order[draw(random, left)]);
    return order;
}

}  // namespace

int64_t SequenceOrder::operator()(int64_t n) {
    if (size_ < 1 || n < 0)
        fail(ErrorCode::internal, "training data", "sequence {} of {} was asked for", n, size_);
    if (const int64_t epoch = n / size_; epoch != epoch_) {
        order_ = permutation(size_, seed_, epoch);
        epoch_ = epoch;
    }
    return order_[static_cast<size_t>(n % size_)];
}

}  // namespace refold
