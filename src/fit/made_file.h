// A file that fit has made, with its recipe and a record of how it was found beside it: a later run with the
// same inputs keeps the file.
#pragma once

#include <optional>
#include <string>

#include "fit/fit.h"

namespace refold {

// "small.gguf" -> "small.recipe.yaml", "small.fit.json"
std::string recipe_path(const std::string& file);
std::string record_path(const std::string& file);

// Everything that the fitted file follows from, as a JSON text: hashes of the model's files and of the
// calibration texts, options, size. Reads the model's files once (remembered_sha256()).
std::string fit_inputs(const Model& model, const Calibration& calibration, const FitOptions& options,
                       uint64_t bytes);

struct FitRecord {
    FitPlan plan;        // without `chosen`
    FitFactors factors;  // known after this fit
    double divergence = 0;
    std::string recipe;  // YAML
};

// The record of `file`, when that file is there and was made from these inputs. Throws Error(usage) when the
// file or its record is there but is of other inputs, and `overwrite` is false.
std::optional<FitRecord> made_before(const std::string& file, const std::string& inputs, bool overwrite);
// Writes record and recipe, and then the file, which is complete when it appears. Replaces what is there:
// call made_before() first.
void write_made(const std::string& file, const std::string& inputs, const FitRecord& record,
                const Model& model);

}  // namespace refold
