// Numbers that are not finite, or too large for an element type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/dtype.h"
#include "refold/error.h"

namespace refold {

// An element of a tensor, counted from its first one.
struct FoundNumber {
    int64_t element = 0;
    float value = 0;
};
// The first element that is NaN or infinite, among whole blocks of `type`. Of quantized blocks only the
// scales are read.
std::optional<FoundNumber> first_not_finite(DType type, std::span<const std::byte> data);
std::optional<FoundNumber> first_not_finite(std::span<const float> values);

// The largest magnitude that a type's scales leave room for; larger numbers always fail. Single blocks may
// hold less: Q4_1 holds -65504 and 982560, but not both.
float largest_number(DType type);

// A number that cannot be stored, which quantize() and check_finite() throw: its place among rows of
// `row_elements`, and why.
class NumberError : public Error {
public:
    NumberError(const FoundNumber& found, int64_t row_elements, std::string why);

    // The same number in a tensor of which these are the rows from `first_row` on.
    NumberError below(int64_t first_row) const;
    // "[component] tensor 'NAME': row 3, column 5 is nan ..."
    Error named(const char* component, const std::string& tensor) const;

private:
    FoundNumber found_;
    int64_t row_elements_;
    std::string why_;
};

// Throws NumberError unless every element is finite.
void check_finite(DType type, std::span<const std::byte> data, int64_t row_elements);
void check_finite(std::span<const float> values, int64_t row_elements);

// Throws NumberError where a value is not finite, or larger than largest_number(). Returns the largest
// magnitude.
float check_holds(DType type, std::span<const float> values, int64_t row_elements);

NumberError too_large(DType type, const FoundNumber& found, int64_t row_elements);

// Runs `action` and gives the tensor's name to a NumberError that leaves it.
template <typename Action>
decltype(auto) naming_tensor(const char* component, const std::string& tensor, Action&& action) {
    try {
        return action();
    } catch (const NumberError& error) {
        throw error.named(component, tensor);
    }
}

// Runs `action` on rows of a tensor, of which `first` is the first one.
template <typename Action>
decltype(auto) in_rows_from(int64_t first, Action&& action) {
    try {
        return action();
    } catch (const NumberError& error) {
        throw error.below(first);
    }
}

}  // namespace refold
