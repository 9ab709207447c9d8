// Compression: methods of recipes applied to a model.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "refold/control.h"
#include "refold/model.h"

namespace refold {

using CompressionProgress = ProgressReport;

// The names that steps of recipes may have.
std::vector<std::string> method_names();

struct CompressionOptions {
    bool overwrite = false;
    int threads = 0;  // 0: all cores
    // Files of UTF-8 text for steps that look at activations or train on them. Empty: those that the recipe
    // names.
    std::vector<std::string> calibration_texts = {};
    int64_t calibration_tokens = 0;  // of all texts together; 0: as the recipe says, by default 32768
    // The model that the compressed one was made of earlier, which calibrated steps compare with. Empty: as
    // the recipe says, by default the model itself.
    std::string original = {};
    // Called from time to time by the thread that runs compress().
    std::function<void(const CompressionProgress&)> on_progress = {};
    // Cancels: compress() throws Error(interrupted) and leaves no output. The finished parts of long
    // steps are found again when the same call is repeated.
    std::stop_token stop = {};
};

struct CompressionStep {
    std::string method;
    ModelCost cost;  // of the model after this step
    double seconds = 0;
};

struct CompressionResult {
    ModelCost before, after;
    std::vector<CompressionStep> steps;
    std::string recipe;  // YAML with every option written out
};

// Applies a recipe, YAML text as in recipes/ and docs/cli.md, and writes the result to `output`, a GGUF file.
// Atomic. Long steps keep their results beside it, in "<output>.work", until it is written.
//
// Throws Error(usage) for an unknown method or option, for a value out of range, for a step that needs
// calibration texts when there are none, and when the output exists; Error(unsupported) when a method does
// not apply to the model; Error(interrupted) when cancelled.
CompressionResult compress(const std::string& model, const std::string& recipe, const std::string& output,
                           const CompressionOptions& options);
CompressionResult compress(const std::string& model, const std::string& recipe, const std::string& output,
                           bool overwrite = false);
// The same for a recipe in a file.
CompressionResult compress_by_file(const std::string& model, const std::string& recipe_file,
                                   const std::string& output, const CompressionOptions& options = {});
// The exact cost of what compress() would write, without writing anything.
CompressionResult plan_compression(const std::string& model, const std::string& recipe,
                                   const std::string& original = {});

}  // namespace refold
