// Reads the provenance that `refold compress` stores in a model as metadata "refold.provenance".
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/report.h"

namespace refold {

// Null when the model has none or it is not a JSON object.
nlohmann::json provenance_of(const Model& model);

// The models that the model was made from, nearest first.
std::vector<FileHashes> origins_of(const nlohmann::json& provenance);

// All recipes that led to the model, in the order of application; empty when there are none.
std::string recipes_of(const nlohmann::json& provenance);

}  // namespace refold
