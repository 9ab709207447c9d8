// Changes of inputs for both drivers.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace refold {

// `input` with a few changes: bits flipped, pieces inserted, removed, repeated or written over, numbers
// exchanged or replaced by extreme ones - as digits and as bytes -, quoted texts exchanged, parts of `other`
// taken over. Of inputs with quotes, every other one gets changes only of numbers and quoted texts, and so
// stays JSON if it was.
std::string mutated(std::string input, std::string_view other, std::span<const std::string_view> words,
                    std::mt19937_64& random);

}  // namespace refold
