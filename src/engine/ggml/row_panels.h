// Rows in panels and their products: of quantized types with inputs in 8 bits, in BF16 with inputs in BF16
// where the CPU multiplies pairs of them, other floats with inputs in F32.
//
// A panel is sixteen stored rows whose blocks are interleaved dword by dword: a vector of 64 bytes holds the
// same dword of a block of all sixteen, so nothing is summed across lanes, and no type needs a packing of its
// own. The bytes of a block that are no whole dwords (its scale in F16, or MXFP4's exponent) lie before all
// dwords of the panel. So a panel is [block][16 rows][0, 1 or 2 bytes], then [block][dword][16 rows], as many
// bytes as its rows. A block of BF16 is two numbers, one dword; one of F16 or F32 is one number. The last
// panel of a matrix may have fewer rows, which are interleaved among themselves.
#pragma once

#include <ggml.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/ggml/quantized_inputs.h"

namespace refold::row_panels {

constexpr int64_t kRows = 16;  // of a panel

constexpr int64_t groups_of(int64_t columns) { return (columns + kInputGroup - 1) / kInputGroup; }

// Rows of a quantized matrix in panels. A stored row holds `fold` rows of the matrix (fold() in io/dtype.h).
struct Matrix {
    ggml_type type;
    const std::byte* data;
    int64_t width;  // numbers of a stored row
    int64_t rows;   // stored rows
    int64_t fold = 1;

    int64_t columns() const { return width / fold; }
    int64_t groups() const { return groups_of(columns()); }  // the last one may have fewer columns
    int64_t panels() const { return (rows + kRows - 1) / kRows; }
    int64_t rows_of(int64_t panel) const { return std::min(kRows, rows - panel * kRows); }
    size_t row_bytes() const { return ggml_row_size(type, width); }
    const std::byte* panel(int64_t i) const { return data + static_cast<size_t>(i * kRows) * row_bytes(); }
};

// The form that products with the type need, if any.
void add_form(InputForms& forms, ggml_type type);

// Whether there are kernels of this CPU's level (engine/cpu_level.h) for the type and rows of `columns`
// numbers.
bool supports(ggml_type type, int64_t columns);

// Packs `count` stored rows of `width` numbers, `stride` bytes apart, into consecutive panels.
void pack(ggml_type type, const std::byte* rows, size_t stride, int64_t count, int64_t width,
          std::byte* panels);
// A stored row as it was before it was packed [row_bytes()].
void read_row(const Matrix& matrix, int64_t row, std::byte* out);

// Memory of one thread.
struct Scratch {
    std::vector<std::byte> panel;     // a last panel, filled up to sixteen rows
    std::vector<std::byte> unpacked;  // panels as bytes with their scales
};

// Row r of the matrix for token t is set at data[t * stride + r], or increased there.
struct Output {
    float* data;
    size_t stride;
    bool add = false;
};

// [first, last).
struct Range {
    int64_t first, last;
};

// Multiplies panels of a matrix, or the groups of kInputGroup columns `groups` of them (all where the matrix
// is folded), by tokens [0, tokens), whose inputs begin with these columns. The first row of the first panel
// is written to out.data. The result for a token does not depend on the number of tokens or panels. Requires
// supports().
void multiply(const Matrix& matrix, Range panels, Range groups, const Inputs& inputs, int64_t tokens,
              const Output& out, Scratch& scratch);

}  // namespace refold::row_panels
