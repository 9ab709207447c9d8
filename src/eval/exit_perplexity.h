// Perplexity of a text whose tokens exit after different loops.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "eval/perplexity.h"
#include "exit/exit_policy.h"
#include "exit/exit_trace.h"

namespace refold {

// After which loops tokens exit. Tokens of a window before the first scored one run all loops.
struct ExitPlan {
    ExitPolicy policy = {};  // rule none with `oracle`
    bool oracle = false;     // exit at the earliest loop that agrees with the last one; for analysis
};

struct ExitPerplexity {
    PerplexityResult exited;                // with the tokens' exits
    std::vector<PerplexityResult> at_loop;  // all tokens after loop i + 1; the last is the full model
    std::vector<double> agreement_at_loop;
    ExitCounts counts;
    std::vector<std::vector<int32_t>> exits;  // [windows][scored tokens]: loop, from 1
};

// One pass of all loops with logits after each, which is enough for ExitedKv::catch_up; a second pass with
// exits for the other policies. Processes of group() share the windows, and all get the result.
// Throws Error(usage) when a window is longer than the engine's context, and as check_exit_policy().
ExitPerplexity measure_exit_perplexity(Engine& engine, const PerplexityPlan& plan, const ExitPlan& exits);

struct ExitCalibration {
    std::vector<double> thresholds;
    ExitCounts counts;  // with these thresholds
};

// Thresholds for the policy's rule with which at least `agreement` of the text's tokens get the full model's
// likeliest token: thresholds_for(), with a higher agreement if the policy's keys and values lose some. If
// even exits that all agree are not enough, the thresholds allow no exit. Throws as the above, and
// Error(usage) for rules without thresholds.
ExitCalibration calibrate_exits(Engine& engine, const PerplexityPlan& plan, const ExitPolicy& policy,
                                double agreement);

}  // namespace refold
