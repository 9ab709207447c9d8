// Results of tasks as lm-evaluation-harness's JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "tasks/run_tasks.h"

namespace refold {

// Keys of lm-eval: results ("acc,none", "acc_stderr,none", alias, sample_len), groups and group_subtasks if
// there are groups, configs, versions, n-shot, higher_is_better and n-samples. In addition, "truncated" has
// the number of requests that lost tokens, "data" the files. A group's figures are means weighted by items,
// with pooled standard errors.
nlohmann::ordered_json results_json(std::span<const TaskRun> runs);

}  // namespace refold
