// Answers per item, in the form of lm-evaluation-harness's samples files.
#pragma once

#include <span>
#include <string>

#include "tasks/run_tasks.h"

namespace refold {

// JSON lines in the order of tasks and items: doc_id, doc, target, arguments, resps, filtered_resps, metrics
// and their values, hashes; and "task", which lm-eval puts into the file's name.
std::string samples_jsonl(std::span<const TaskRun> runs);

}  // namespace refold
