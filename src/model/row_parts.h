// Tables whose rows lie in several tensors (RowParts in topology.h), so that rows can have different types.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// The rows of W as they follow each other in the parts. Throws Error(input) where the tensor `ids` does not
// list different rows of W.
std::vector<int32_t> ids_in_order(const Model& model, const RowParts& parts);
// All that the topology has, as ids_in_order() does: for a model that was read from a file.
void check_row_parts(const Model& model);

// Where each row of W is in the parts, one after the other: the inverse of ids_in_order().
std::vector<int32_t> places_of_rows(const Model& model, const RowParts& parts);

// The name of the tensor that with_row_parts() cut.
std::string table_of(const RowParts& parts);

// The number of rows in the parts of a slot of the whole model; nothing when they are in one tensor. Throws
// Error(input) when a part is missing.
std::optional<int64_t> rows_in_parts(const Model& model, Slot slot);

// The model with every table in one tensor again, in `type`, or the widest type of its parts whose blocks
// divide rows. Rows that have it already keep their bytes. Nothing when no table is in parts.
std::optional<Model> with_whole_tables(const Model& model, std::optional<DType> type = {});

// Cuts a stored tensor that embedding, output or both have as a whole: part k gets the next counts[k] rows of
// `order`, which lists rows of the tensor; the last part gets all other rows. The parts are named
// "<tensor>.part0" and so on, and have the tensor's type, which must have whole blocks in a row. `order` is
// called when the parts are read.
Model with_row_parts(const Model& model, const std::string& tensor, const std::vector<int64_t>& counts,
                     std::function<std::vector<int32_t>()> order);

}  // namespace refold
