// Stored tensors without some of their parts, streamed from what they were cut from.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

// Parts `kept` (ascending) of a tensor of parts of `width` rows each, or of `width` columns each.
struct Cut {
    bool columns = false;
    int64_t width = 1;
    std::vector<int64_t> kept;
};
// In another `type`, values are converted. Columns of a quantised tensor that keeps its type must be whole
// blocks: see fits_blocks().
Tensor keep_parts(const Model& model, const Tensor& tensor, const Cut& cut, DType type);
// True when every run of neighbouring kept columns starts and ends at a block of `type`. Always for rows.
bool fits_blocks(const Cut& cut, DType type);
// What a quantised tensor becomes whose columns are cut between blocks: Q8_0 where `columns` are whole blocks
// of it, else F16.
DType requantised_type(int64_t columns);

struct Requantised {
    std::string tensor;
    DType from, to;
    size_t bytes_before, bytes_after;  // of the parts that are kept
};
// Lines and details["requantised"]; `hint`: how to avoid it, may be empty.
void report_requantised(const std::vector<Requantised>& requantised, const std::string& hint,
                        StepReport& report, nlohmann::json& details);

// Columns [first, first + count) of a float32 tensor: a bias, or prefix keys.
struct Columns {
    std::string tensor;
    int64_t first = 0, count = 0;
    bool operator==(const Columns&) const = default;
};
// Gives positions new vectors (or rows) of `slot`, each made of columns of stored ones. Positions that get
// the same ones have one tensor in common, named after the first of them.
void set_columns(Model& model, Slot slot, const std::map<size_t, std::vector<Columns>>& columns);

}  // namespace refold
