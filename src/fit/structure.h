// What `fit` changes besides types: methods in settings that reach a budget, and what each loses.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/compress.h"
#include "fit/budget.h"
#include "fit/settings.h"

namespace refold {

struct Structure {
    Settings settings;
    size_t severity = 0;  // an index into settings.varied

    std::string text() const { return settings.text(severity); }
    std::vector<RecipeStep> steps() const { return settings.steps(severity); }
};

// For all settings of the methods the mildest severity that is within the budget, by a dry run. Settings that
// do not reach it are left out. Throws Error(usage) when none does, with the least that can be reached of
// each part of the budget, and when the model spends no more already. Without `speeds`, budget.token_seconds
// must be empty.
std::vector<Structure> structures_within(const Model& model, const Budget& budget,
                                         std::span<const std::string> methods, const TypeSpeeds* speeds);

// What it is expected to spend, by a dry run.
Spending planned(const Model& model, const Structure& structure, const TypeSpeeds* speeds);

struct MeasuredStructure {
    Structure structure;
    double divergence = 0;  // from the original on held-out sequences, unquantized
};

struct MeasureWith {
    std::string version;  // of refold
    Work& work;
    StepInputs inputs;
    const TypeSpeeds* speeds = nullptr;
};

// Carries the structure out. One that turns out larger than in its dry run becomes more severe until it is
// within the budget; nothing when it cannot. The result is kept in the work folder.
std::optional<MeasuredStructure> measured(const Model& model, Structure structure, const Budget& budget,
                                          const MeasureWith& with);

// The recipe of these steps.
Recipe recipe_of_steps(const std::vector<RecipeStep>& steps);

}  // namespace refold
