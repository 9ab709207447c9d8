// The numbers that codes of IQ1, IQ2 and IQ3 stand for, eight or four at once ("grid" in ggml).
#pragma once

#include <ggml.h>

#include <array>
#include <cstdint>

namespace refold::row_panels {

// The numbers of eight-column codes, and their numbers among these. IQ1's are eighths, for a shift of +1/8.
constexpr std::array<int, 3> kIq2Numbers = {8, 25, 43};
constexpr std::array<int, 3> kIq1Numbers = {-7, 1, 9};

// An entry for each code, made of ggml's dequantization when it is first asked for. IQ3: the four numbers, a
// byte each. IQ1 and IQ2: a half-byte for each of eight columns, which says which of the three numbers above
// it has; columns 0 to 3 are in the lower halves of the bytes, 4 to 7 in the upper ones.
const uint32_t* grid_of(ggml_type type);

}  // namespace refold::row_panels
