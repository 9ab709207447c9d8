#include "tasks/python_random.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <unordered_set>

namespace refold {

// init_by_array() of the reference implementation, with the seed's words as key, as in CPython.
PythonRandom::PythonRandom(uint64_t seed) {
    std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
    if (seed >> 32U != 0) key.push_back(static_cast<uint32_t>(seed >> 32U));
    state_[0] = 19650218;
    const auto mixed = [&](size_t i, uint32_t factor) {
        const uint32_t before = state_[i - 1];
        return state_[i] ^ ((before ^ (before >> 30U)) * factor);
    };
    for (size_t i = 1; i < state_.size(); ++i) {
        const uint32_t before = state_[i - 1];
        state_[i] = 1812433253U * (before ^ (before >> 30U)) + static_cast<uint32_t>(i);
    }
    size_t i = 1;
    const auto advance = [&] {
        if (++i == state_.size()) {
            state_[0] = state_.back();
            i = 1;
        }
    };
    for (size_t k = 0; k < std::max(state_.size(), key.size()); ++k) {
        const size_t j = k % key.size();
        state_[i] = mixed(i, 1664525) + key[j] + static_cast<uint32_t>(j);
        advance();
    }
    for (size_t k = 1; k < state_.size(); ++k) {
        state_[i] = mixed(i, 1566083941) - static_cast<uint32_t>(i);
        advance();
    }
    state_[0] = 0x80000000U;
}

uint32_t PythonRandom::next() {
    constexpr size_t n = 624, m = 397;
    if (index_ == n) {
        for (size_t i = 0; i < n; ++i) {
            const uint32_t y = (state_[i] & 0x80000000U) | (state_[(i + 1) % n] & 0x7FFFFFFFU);
            state_[i] = state_[(i + m) % n] ^ (y >> 1U) ^ ((y & 1U) != 0 ? 0x9908B0DFU : 0U);
        }
        index_ = 0;
    }
    uint32_t y = state_[index_++];
    y ^= y >> 11U;
    y ^= (y << 7U) & 0x9D2C5680U;
    y ^= (y << 15U) & 0xEFC60000U;
    return y ^ (y >> 18U);
}

double PythonRandom::random() {
    const uint32_t high = next() >> 5U, low = next() >> 6U;
    return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint32_t PythonRandom::bits(int bits) { return next() >> static_cast<unsigned>(32 - bits); }

size_t PythonRandom::below(size_t limit) {
    const int width = std::bit_width(limit);
    size_t value = limit;
    while (value >= limit) value = bits(width);
    return value;
}

std::vector<size_t> PythonRandom::sample(size_t population, size_t count) {
    // Like CPython, draws from a pool if that is smaller than a set of the indices drawn.
    size_t set_size = 21;
    for (size_t power = 1; count > 5; power *= 4)
        if (power > count * 3) {
            set_size += power;
            break;
        }
    std::vector<size_t> drawn(count);
    if (population <= set_size) {
        std::vector<size_t> pool(population);
        std::iota(pool.begin(), pool.end(), size_t{0});
        for (size_t i = 0; i < count; ++i) {
            const size_t at = below(population - i);
            drawn[i] = pool[at];
            pool[at] = pool[population - i - 1];
        }
        return drawn;
    }
    std::unordered_set<size_t> taken;
    for (size_t& one : drawn) {
        one = below(population);
        while (!taken.insert(one).second) one = below(population);
    }
    return drawn;
}

}  // namespace refold
