// Applies a recipe to a model.
#pragma once

#include <string>
#include <vector>

#include "compress/recipe.h"
#include "compress/training.h"
#include "compress/work.h"
#include "model/accounting.h"

namespace refold {

struct StepResult {
    const Method* method;
    StepReport report;
    Cost cost;  // of the model after this step
    double seconds;
};

struct Compression {
    Model model;  // validated; nothing is written yet, tensors are produced when it is saved
    Recipe recipe;
    Cost before;  // of the model as it came
    std::vector<StepResult> steps;

    const Cost& after() const { return steps.empty() ? before : steps.back().cost; }
};

// What the steps are given beside the model; must live until the model is saved.
struct StepInputs {
    // May be null when no step needs it: first_calibrated().
    const Calibration* calibration = nullptr;
    int threads = 0;                     // for running models; 0: all cores
    const Training* training = nullptr;  // may be null when no step trains
    // What calibrated steps compare with and learn from: the model that `model` was made of earlier. Null:
    // `model`.
    const Model* original = nullptr;
};

// What the recipe would do to the model, with the exact cost of the result: a dry run, which writes nothing.
// Reads the weights that the methods need to decide (matching heads, for instance); the result's tensors have
// shapes, but those that take long to compute have no values.
// Only `original` of the inputs is looked at.
Compression plan(const Model& model, const Recipe& recipe, const StepInputs& inputs = {});

// Applies the recipe, and puts under "refold.provenance" in the result's metadata where it comes from, as
// JSON: version of refold, the source's file name, SHA-256 and own provenance, and the recipe with all
// defaults. Reads the whole source file. `work` keeps what takes long and must live until the model is saved.
// Throws Error(usage) when a step needs calibration text and there is none, Error(input) when the original is
// no model that this one can have been made of.
Compression compress(const Model& model, const Recipe& recipe, const std::string& version, Work& work,
                     const StepInputs& inputs = {});

// For `compress --json`: before and after (parameters, bytes, ...), and each step's details.
std::string to_json(const Compression& compression);
// For people: a table before / after and each step's lines.
std::string to_text(const Compression& compression);

}  // namespace refold
