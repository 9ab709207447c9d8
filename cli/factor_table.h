// Tables of factored weights, for people and programs: costs compared with dense weights, and execution.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"

namespace refold::cli {

// One row for all layers with the same factors and costs; empty when no weight has factors. Slots with the
// same input (attn.q, k and v) are one row, because they run together. The execution is decided by bytes, see
// model/execution.h.
std::string factor_table(const Model& model);
// The same rows: [{"layers", "weights", "operations": {"factored", "dense"}, "bytes": {...}, "execution"}]
nlohmann::ordered_json factor_json(const Model& model);

}  // namespace refold::cli
