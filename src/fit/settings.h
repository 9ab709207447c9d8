// The settings of methods that `fit` tries besides types.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "compress/recipe.h"
#include "model/model.h"

namespace refold {

// Methods that change the structure of a model, and so the size of its file, of its KV cache, or both.
inline constexpr std::array kStructureMethods = {"narrow",       "llmdrop",   "cla",       "uniattn",
                                                 "direct_share", "ffn_share", "tensorllm", "laser"};
// Those that make the KV cache smaller.
inline constexpr std::array kCacheMethods = {"narrow", "llmdrop", "cla", "uniattn"};

// Settings of a method that differ in how much they save.
struct Settings {
    std::string method;
    std::vector<std::string> fixed;                // "match=qk"
    std::vector<std::vector<std::string>> varied;  // from mild to severe
    // The maps that remain are solved anew afterwards (refit). Other methods do that themselves.
    bool repair = true;
    // Where only calibration text tells how much of which layer goes, a dry run spreads it evenly, in whole
    // channels and groups. What is saved then grows with the part that goes of what `whole` saves.
    struct Proportional {
        std::vector<std::string> whole;
        std::vector<double> parts;  // by severity
    };
    std::optional<Proportional> proportional = {};

    // "direct_share match=qk ratio=0.3, refit"
    std::string text(size_t severity) const;
    std::vector<RecipeStep> steps(size_t severity) const { return steps_with(varied[severity]); }
    // With other settings besides the fixed ones.
    std::vector<RecipeStep> steps_with(std::vector<std::string> settings) const;
};

// For one of kStructureMethods, and a model of this shape.
std::vector<Settings> settings_of(const Model& model, const std::string& method);

}  // namespace refold
