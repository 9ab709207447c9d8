// Weights made of factors, for people and programs: what they cost against dense ones, and how they run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"

namespace refold::cli {

// One row for all positions that are alike; empty when no weight has factors. Slots with one input (attn.q, k
// and v) are one row, as they are run together. Bytes are those that decide together with them, see
// model/execution.h.
std::string factor_table(const Model& model);
// The same rows: [{"positions", "weights", "operations": {"factored", "dense"}, "bytes": {...}, "execution":
// {"1": ..., "512": ...}}]
nlohmann::ordered_json factor_json(const Model& model);

}  // namespace refold::cli
