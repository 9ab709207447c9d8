// Recipes: the methods to apply and their options, in order. YAML:
//
//   model: smollm2-135m-instruct   # optional when the command line names one
//   original: dense.gguf           # the model that `model` was made from earlier: see Step::original
//   calibration:                   # for methods that look at activations; --calib on the command line
//     text: wiki.valid.txt         # or a list of files, from which sequences are taken in turn
//     tokens: 32768
//   steps:
//     - method: direct_share
//       ratio: 0.3
//
// mergekit's configuration of a passthrough merge of one model with itself is a recipe, too: the step
// `repeat`.
//
// A recipe is checked completely before any weight is read.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "compress/method/method.h"

namespace refold {

struct RecipeStep {
    const Method* method;
    Options options;
};

struct Recipe {
    std::string model;                           // empty when the recipe names none
    std::string original;                        // likewise
    std::vector<std::string> calibration_texts;  // paths; empty when the recipe names none
    CalibrationOptions calibration;
    std::vector<RecipeStep> steps;
};

// `path` is looked for as data_file() does (core/data_files.h).
// Throws Error(io) when the file cannot be read, Error(input) when it is not YAML of this shape (not YAML, no
// mapping, a key twice, no steps), Error(usage) for an unknown key, method, option or value. Messages name
// file, line and the nearest valid name.
Recipe read_recipe(const std::string& path);
// The same for text in memory; `label` is the file name in messages.
Recipe parse_recipe(const std::string& text, const std::string& label);

// A recipe of one step from the command line; settings are "option=value". Throws Error(usage) as above, and
// for a setting without '='.
Recipe recipe_from_method(const std::string& method, std::span<const std::string> settings);

// The recipe with its first `count` steps alone.
Recipe first_steps(const Recipe& recipe, size_t count);

// The first step that needs calibration text; null when none does.
const Method* first_calibrated(const Recipe& recipe);

// The recipe with all options, defaults (and so seeds) included. parse_recipe() reads it back.
std::string to_yaml(const Recipe& recipe);

}  // namespace refold
