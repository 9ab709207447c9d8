// Applies a recipe to a model.
#pragma once

#include <string>
#include <vector>

#include "compress/method/work.h"
#include "compress/recipe.h"
#include "compress/training/training.h"
#include "model/accounting.h"

namespace refold {

struct StepResult {
    const Method* method;
    StepReport report;
    Cost cost;  // of the model after this step
    double seconds;
};

struct Compression {
    Model model;  // validated; its tensors are computed when it is saved
    Recipe recipe;
    Cost before;  // of the given model
    std::vector<StepResult> steps;

    const Cost& after() const { return steps.empty() ? before : steps.back().cost; }
};

// The inputs of the steps besides the model; must live until the model is saved.
struct StepInputs {
    // May be null when no step needs it: first_calibrated().
    const Calibration* calibration = nullptr;
    int threads = 0;                     // for running models; 0: all cores
    const Training* training = nullptr;  // may be null when no step trains
    // Calibrated steps compare with it: the model that `model` was made from earlier. Null: `model` itself.
    const Model* original = nullptr;
};

// A hash of the model's files and the calibration text, without reading weights.
std::string identity_of(const Model& model, const Calibration& calibration);

// A dry run: the steps' reports and the exact cost of the result. Reads the weights that
// methods decide by (matching heads, for instance). Tensors of the result that take long to compute have
// shapes but no values. Of the inputs only `original` is used.
Compression plan(const Model& model, const Recipe& recipe, const StepInputs& inputs = {});

// Applies the recipe. The result's metadata says under "refold.provenance", as JSON, where it comes from:
// version of refold; file name, SHA-256 and provenance of the source; the recipe with all defaults. Reads the
// whole source file. `work` keeps results of long computations and must live until the model is saved. Throws
// Error(usage) when a step needs calibration text and there is none, Error(input) when the model cannot have
// been made from the original, Error(unsupported) when the source's own provenance cannot be kept.
Compression compress(const Model& model, const Recipe& recipe, const std::string& version, Work& work,
                     const StepInputs& inputs = {});

// The provenance of a model that was edited otherwise; `recipe` says how. Reads the whole source file.
std::string provenance_of_edits(const Model& source, const std::string& recipe, const std::string& version);

// For `compress --json`: the cost before and after (parameters, bytes, ...) and the details of each step.
std::string to_json(const Compression& compression);
// For people: the lines of each step, and a table of the cost before and after.
std::string to_text(const Compression& compression);

}  // namespace refold
