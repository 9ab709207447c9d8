// The best model of a given size: types for all matrices, chosen by what each costs in divergence from the
// original, and applied by the method `quantize`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compress/compress.h"
#include "compress/method/allocation.h"
#include "fit/budget.h"
#include "fit/candidates.h"
#include "fit/sensitivity.h"

namespace refold {

struct FitOptions {
    int64_t probe_tokens = 256;  // to measure how much the predictions depend on each matrix
    // The result is plain GGUF that llama.cpp runs: whole_blocks.
    RowLayout layout = RowLayout::or_folded;
    int threads = 0;
    std::vector<std::string> texts;          // paths of the calibration text, for the recipe
    std::string version;                     // of refold, for the result's provenance
    std::vector<RecipeStep> structure = {};  // steps before types are chosen: structure.h
    std::optional<TypeSpeeds> speeds = {};   // for a budget of seconds
};

// What the matrices get, and what is predicted to follow.
struct FitPlan {
    std::vector<size_t> chosen;             // by Candidates::tensors(), an index into the candidates
    std::string types;                      // the same as option `types` of the method quantize
    uint64_t bytes = 0;                     // of the file
    double token_seconds = 0;               // predicted, with FitOptions::speeds
    double of_matrices = 0, of_tables = 0;  // predicted divergence, in nats per token
    double of_structure = 0;                // measured: search.h
    // Maps are solved before they are rounded. The residual stream then comes nearer to the original's, and
    // most often the predictions do as well.
    bool resolve = true;

    double divergence() const { return of_structure + of_matrices + of_tables; }
};

// A plan carried out.
struct Fitted {
    FitPlan plan;
    Compression compression;
    // On held-out sequences of the calibration text, which chose nothing but ridges.
    double divergence = 0;
};

// Divergence that remains for a unit of predicted divergence. Rounding with feedback, and solving maps before
// they are rounded, make less than what rounding to nearest in one matrix at a time predicts. Tables, which
// no later map makes up for, have a factor of their own.
struct FitFactors {
    double matrices = 0.25, tables = 1;
};

// What matrices and tables add to a divergence.
struct FitParts {
    double matrices = 0, tables = 0;

    // Whether a part of a prediction is large enough to learn its factor from: of types that lose almost
    // nothing, what is measured beside other losses says nothing about the next size.
    bool matrices_matter() const { return matrices >= 0.1 * (matrices + tables); }
    bool tables_matter() const { return tables >= 0.1 * (matrices + tables); }
};

// `now` times measured over predicted, for the parts that matter.
FitFactors corrected_factors(const FitFactors& now, const FitParts& predicted, const FitParts& measured);

class Fit {
public:
    // Measures the model, or takes what an earlier run left in the work folder. What the arguments refer to
    // must outlive this object.
    Fit(const Model& model, const Calibration& calibration, Work& work, const FitOptions& options);

    // The plan of the smallest predicted divergence within the budget, which must have file_bytes; its
    // kv_bytes_per_token is the business of the structure. Throws Error(usage) with the smallest possible
    // size and its predicted divergence when that is larger, and with the largest speed that types reach at
    // this size when that is slower.
    FitPlan plan(const Budget& budget) const;
    // Tries the plan on a part of the calibration text, where tables have most of its error with and without
    // solved maps. The factors are then corrected by what was measured, and the plan that is best by these is
    // carried out. Factors of which both parts matter are kept in the work folder, for other sizes.
    Fitted fit(const Budget& budget);

    // The factors that an earlier run found: fit() corrects no more.
    void use(const FitFactors& factors);
    const FitFactors& factors() const { return factors_; }
    // The recipe that carries out a plan; it gives the same file again, bit for bit.
    Recipe recipe(const FitPlan& plan) const;

private:
    // What an allocation makes small: weights of divergence (nats) and of time (seconds).
    struct Aim {
        double divergence, seconds;
    };
    std::vector<AllocationItem> costs(const Aim& aim = {1, 0}) const;  // by tensor
    double seconds_of(size_t tensor, size_t candidate) const;
    double seconds_of(const std::vector<size_t>& chosen) const;  // of the whole token
    // By tensor, for matrices of so many bytes; nothing when they cannot be so small.
    std::optional<std::vector<size_t>> allocated(uint64_t bytes, const Aim& aim = {1, 0}) const;
    // The least divergence for so many bytes and seconds; throws when no types are that fast.
    std::optional<std::vector<size_t>> allocated(uint64_t bytes, const Budget& budget) const;
    // Its bytes are those of the matrices and other_bytes_.
    FitPlan plan_of(const std::vector<size_t>& chosen) const;
    uint64_t exact_bytes(const FitPlan& plan) const;
    Fitted carried_out(const FitPlan& plan, const Calibration& calibration) const;
    Fitted better_way(FitPlan plan) const;
    Measurement measurement() const { return {work_, measured_on_, identity_, options_.threads}; }
    const Divergence& from_model() const;
    ResultKey factors_key() const;
    Model with_tables_of(const Model& made) const;
    FitFactors corrected(const Fitted& first) const;

    // The model whose matrices get types.
    const Model& shaped() const { return shaped_ ? shaped_->model : model_; }

    const Model& model_;
    const Calibration& calibration_;
    // Parts of it: for what is measured, and, of that, for what is tried and not written.
    const Calibration measured_on_, trials_;
    Work& work_;
    FitOptions options_;
    std::optional<Compression> shaped_;  // by the structure
    std::string identity_;               // of what is measured
    Candidates candidates_;
    std::vector<std::vector<size_t>> groups_;  // of_one_type()
    std::vector<double> sensitivities_;
    std::vector<double> multiplied_;  // by tensor: its part of weights_multiplied()
    uint64_t other_bytes_ = 0;        // of the file: everything but the matrices
    double other_seconds_ = 0;        // of a token: likewise
    mutable std::optional<Divergence> from_model_;
    FitFactors factors_;
    bool corrected_ = false;
};

}  // namespace refold
