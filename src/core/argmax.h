#pragma once

#include <cstddef>
#include <span>

namespace refold {

// The first of the largest values; NaN is never one. 0 of values that are all NaN or -infinity, and of none.
size_t argmax(std::span<const float> values);

}  // namespace refold
