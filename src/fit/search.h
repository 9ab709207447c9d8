// The best of what `fit` may do under a budget: types, methods that change the structure, or both.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fit/fit.h"
#include "fit/structure.h"

namespace refold {

// What `fit` may do.
struct Moves {
    bool types = true;
    std::vector<std::string> methods;  // of kStructureMethods
};

// A way to reach a budget, and what it loses.
struct Way {
    std::optional<Structure> structure;  // none: types alone
    double of_structure = 0;             // divergence on held-out sequences before types are chosen
    std::optional<double> of_types;      // predicted for the bytes that remain; none: types stay as they are

    double divergence() const { return of_structure + of_types.value_or(0); }
    std::string text() const;
};

class Search {
public:
    // Throws as check_reachable(). What the arguments refer to must outlive this object. options.structure is
    // empty.
    Search(const Model& model, const Calibration& calibration, Work& work, const FitOptions& options,
           Moves moves, const Budget& budget);

    // All ways that were measured, the best one first. A structure that alone loses more than another way in
    // all cannot win; types are not chosen for it, and of the same settings nothing more severe is measured.
    // Throws Error(usage) when none reaches the budget after all.
    const std::vector<Way>& ways();
    // The best way's types. Throws as Fit::plan().
    FitPlan plan();
    // Carries out the best way.
    Fitted carry_out();
    // Of what plan() or carry_out() gave.
    Recipe recipe(const FitPlan& plan);

private:
    void measure_structures();
    // Predicts types; nothing is added where they cannot reach the budget.
    void add_types(Way way);
    const Way& best() { return ways().front(); }
    Fit& best_fit();
    FitOptions options_with(const Way& way) const;
    double least() const;  // divergence of the ways so far

    const Model& model_;
    const Calibration& calibration_;
    Work& work_;
    FitOptions options_;
    Moves moves_;
    Budget budget_;
    // By settings, from mild to severe.
    std::vector<std::vector<Structure>> structures_;
    std::vector<Way> ways_;
    std::string obstacle_;                   // why a way was not added
    std::unique_ptr<Fit> alone_, best_fit_;  // of types without a structure; of the best way
};

// Throws Error(usage) when the moves cannot reach the budget, as far as that is known without measuring: with
// seconds, which need `speeds`, types may still turn out too slow.
void check_reachable(const Model& model, RowLayout layout, const Moves& moves, const Budget& budget,
                     const TypeSpeeds* speeds = nullptr);

}  // namespace refold
