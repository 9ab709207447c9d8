#pragma once

#include <cstddef>
#include <span>

namespace refold {

// Index of the largest value, the first one on ties; NaN is ignored. 0 when `values` is empty or all of it is
// NaN or -infinity.
size_t argmax(std::span<const float> values);

}  // namespace refold
