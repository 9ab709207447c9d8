// The numbers that codes of IQ1, IQ2 and IQ3 stand for, eight or four at once ("grid" in ggml).
#pragma once

#include <ggml.h>

#include <cstdint>
#include <vector>

namespace refold::row_panels {

// The numbers that occur in a grid: magnitudes, and those of IQ1 in eighths, shifted by 1/8 or -1/8.
constexpr int kIq2Numbers[] = {8, 25, 43};
constexpr int kIq3XxsNumbers[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int kIq3SNumbers[] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int kIq1Numbers[] = {-9, -7, -1, 1, 7, 9};

struct Grid {
    // By code. IQ3: the four numbers, a byte each. IQ1 and IQ2: a half-byte for each of eight columns, which
    // says which of the numbers above it has; columns 0 to 3 are in the lower halves of the bytes, 4 to 7 in
    // the upper ones.
    std::vector<uint32_t> entries;
    // The same for lookups in registers, by code. IQ2: two bits for each of columns 0 to 3, then of columns 4
    // to 7 for all codes. IQ3: the lower two bits of which number each of four columns has, then the upper
    // bit of all codes. IQ1: none.
    std::vector<uint8_t> planes;
};

// A code of IQ1 has twelve bits here; the upper one says that the shift is -1/8.
// Made of ggml's dequantization when a grid is first asked for.
const Grid& grid_of(ggml_type type);

}  // namespace refold::row_panels
