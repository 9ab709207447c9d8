// Stored tensors that lose some of their rows or columns; the rest is streamed from the original tensor.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compress/method/method.h"

namespace refold {

// The tensor is divided into parts of `width` rows (or columns) each, of which those in `kept` (ascending)
// stay.
struct Cut {
    bool columns = false;
    int64_t width = 1;
    std::vector<int64_t> kept;
};
// Converts values when `type` differs from the tensor's. Columns of a quantized tensor that keeps its type
// must be whole blocks: see fits_blocks().
Tensor keep_parts(const Model& model, const Tensor& tensor, const Cut& cut, DType type);
// True when every run of neighboring kept columns starts and ends at a block of `type`. Always true for rows.
bool fits_blocks(const Cut& cut, DType type);
// The type of a quantized tensor whose columns were cut inside blocks: Q8_0 when its `columns` are whole
// blocks of that, else F16.
DType requantized_type(int64_t columns);

struct Requantized {
    std::string tensor;
    DType from, to;
    size_t bytes_before, bytes_after;  // of the parts that stay
};
// Adds lines and details["requantized"]. `hint` says how to avoid requantizing; may be empty.
void report_requantized(const std::vector<Requantized>& requantized, const std::string& hint,
                        StepReport& report, nlohmann::json& details);

// Columns [first, first + count) of a float32 tensor (a bias, or prefix keys).
struct Columns {
    std::string tensor;
    int64_t first = 0, count = 0;
    bool operator==(const Columns&) const = default;
};
// Gives layers a new tensor for `slot`, put together from columns of stored tensors. Layers with the same
// columns share one tensor, named after the first of them.
void set_columns(Model& model, Slot slot, const std::map<size_t, std::vector<Columns>>& columns);

}  // namespace refold
