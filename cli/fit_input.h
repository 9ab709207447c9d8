// What the two forms of `refold fit` have in common: one size, and several (fit_frontier.h).
#pragma once

#include <string>
#include <vector>

#include "cli/calibration_device.h"
#include "cli/options.h"
#include "cli/perplexity.h"
#include "cli/sizes.h"
#include "fit/search.h"

namespace refold::cli {

struct FitArguments {
    std::string model, size, frontier, work, target = "refold";
    double ratio = 0, bits = 0, decode_speed = 0;
    std::string kv_per_token;
    std::vector<std::string> moves;
    std::vector<std::string> calibration, compare;
    CalibrationOptions text{.tokens = 16384};
    int64_t probe_tokens = FitOptions{}.probe_tokens;
    int threads = 0;
    CalibrationDevice where;
    bool dry_run = false;
    PerplexityArguments perplexity;  // of --frontier
    OutputOptions output;
    ReportOptions report;

    // The folder of measurements.
    std::string work_folder() const { return work.empty() ? output.path + ".fit" : work; }
};

// The model and what may become of it.
struct FitInput {
    std::string path;
    Model model;
    uint64_t file_bytes = 0;
    FitOptions options;
};
// Throws Error(usage) for options that contradict each other, Error(unsupported) when --for llama.cpp is
// given for a model that llama.cpp does not load as it stands.
FitInput load_fit_input(const FitArguments& arguments);

// Throws Error(usage) when a file of this size could not be made, or would save nothing. Measures nothing.
void check_budgets(const FitArguments& arguments, const FitInput& input, const std::vector<uint64_t>& bytes);

// --moves, or what is meant without it: types, and what makes the KV cache smaller when --kv-per-token is
// given.
Moves moves_of(const FitArguments& arguments);
// With --kv-per-token, and --decode-speed where input.options has speeds.
Budget budget_of(const FitArguments& arguments, const FitInput& input, uint64_t bytes);
// Measures what the moves lose, and says so unless that is types alone. Returns the steps of the best one
// that come before types.
std::vector<RecipeStep> best_structure(const FitArguments& arguments, Search& search);

// A plan's figures, with the keys of --json.
nlohmann::ordered_json plan_json(const FitPlan& plan);
std::string plan_line(const FitPlan& plan);

}  // namespace refold::cli
