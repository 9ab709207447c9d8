// Early exit in `eval`.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eval/exit_perplexity.h"
#include "model/model.h"

namespace refold::cli {

struct ExitArguments {
    ExitPlan plan;
    double agreement = 0;                  // wanted, in (0, 1]; 0: thresholds are given
    std::vector<std::string> calibration;  // files
    int64_t calibration_tokens = 32768;
    std::string trajectory;  // file; perplexity only

    bool active() const { return plan.oracle || plan.policy.active(); }
    std::string rule() const { return plan.oracle ? "oracle" : exit_rule_name(plan.policy.rule); }
};

// The options of add_exit_options(), --exit-agreement, --calib, --calib-tokens; for perplexity also the rule
// oracle and --exit-trajectory.
void add_eval_exit_options(CLI::App& app, ExitArguments& arguments, bool perplexity);

// As check_exit_policy().
void check_exits(const ExitPolicy& policy, const Model& model);
// Throws Error(usage) for arguments that do not fit each other, the model or the engine's options.
void check_exits(const ExitArguments& arguments, const Model& model, const EngineOptions& engine);
// An engine for `sequences` of `context` tokens and for the calibration.
std::unique_ptr<Engine> make_exit_engine(const Model& model, const ExitArguments& arguments,
                                         EngineOptions options, int64_t context, int64_t sequences);

// With --exit-agreement: sets the thresholds and says what was found; else null. `model` is its path.
nlohmann::ordered_json calibrate(ExitArguments& arguments, Engine& engine, const std::string& model);

// {loops, exits, mean_loops, agreement}
nlohmann::ordered_json exit_counts_json(const ExitCounts& counts);
// {rule, loop, thresholds, kv}, then the same.
nlohmann::ordered_json exits_json(const ExitArguments& arguments, const ExitCounts& counts);
// "exits: probability of 0.9 or more, keys and values: catch-up"
std::string exit_rule_text(const ExitArguments& arguments);
// "exits after loop 1: 123 (61.5 %), 2: 77 (38.5 %); mean loops 1.385 of 2, agreement with all loops 97.12 %"
std::string exit_counts_text(const ExitCounts& counts);

}  // namespace refold::cli
