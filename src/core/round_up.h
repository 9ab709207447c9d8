#pragma once

namespace refold {

// The smallest multiple of `unit` that is not below `value`, which is not negative.
template <class Integer>
constexpr Integer round_up(Integer value, Integer unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace refold
