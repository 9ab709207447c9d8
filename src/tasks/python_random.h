// Python's random.Random with an integer seed, bit for bit, for the few-shot draws and bootstraps of
// lm-evaluation-harness.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace refold {

class PythonRandom {
public:
    explicit PythonRandom(uint64_t seed);

    // [0, 1), 53 bits.
    double random();
    // The next `bits` (1 to 32) random bits.
    uint32_t bits(int bits);
    // randrange(limit) for limit >= 1.
    size_t below(size_t limit);
    // sample(range(population), count); count <= population.
    std::vector<size_t> sample(size_t population, size_t count);

private:
    uint32_t next();

    std::array<uint32_t, 624> state_;  // Mersenne Twister (Matsumoto and Nishimura 1998)
    size_t index_ = 624;
};

}  // namespace refold
