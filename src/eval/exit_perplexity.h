// Perplexity of a text whose tokens' predictions are taken after different loops.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch.h"
#include "eval/perplexity.h"
#include "exit/exit_policy.h"
#include "exit/exit_trace.h"

namespace refold {

// Which tokens exit where. Tokens of a window before the first scored one run all loops.
struct ExitPlan {
    ExitPolicy policy = {};  // its rule is none with `oracle`
    bool oracle = false;     // the earliest loop that agrees with the last one: for analysis
};

struct ExitPerplexity {
    PerplexityResult exited;                // as the tokens exit
    std::vector<PerplexityResult> at_loop;  // with all tokens after this loop; the last is the full model
    std::vector<double> agreement_at_loop;
    ExitCounts counts;
    std::vector<std::vector<int32_t>> exits;  // of every window's scored tokens: loop
};

// One pass of all loops, with logits behind each, which says everything for ExitedKv::catch_up; another one
// with exits for the other policies. Processes of group() share the windows, and all get the result.
// Throws Error(usage) when a window is longer than the engine's context, and as check_exit_policy().
ExitPerplexity measure_exit_perplexity(BatchEngine& engine, const PerplexityPlan& plan,
                                       const ExitPlan& exits);

struct ExitCalibration {
    std::vector<double> thresholds;
    ExitCounts counts;  // with them
};

// Thresholds for the policy's rule with which at least `agreement` of the text's tokens get the full model's
// likeliest token: thresholds_for(), asked for more agreement where the policy's keys and values cost some.
// Where even exits that agree by themselves are not enough, none is allowed. Throws as the above, and
// Error(usage) for rules without thresholds.
ExitCalibration calibrate_exits(BatchEngine& engine, const PerplexityPlan& plan, const ExitPolicy& policy,
                                double agreement);

}  // namespace refold
