// Tasks on a model: requests, answers, figures.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tasks/exit_answers.h"
#include "tasks/metrics.h"
#include "tasks/request.h"
#include "tasks/task_engine.h"
#include "tasks/work_file.h"
#include "text/tokenizer.h"

namespace refold {

struct TaskRun {
    Task task;
    std::vector<Request> requests;
    std::vector<Answer> answers;        // by item
    std::vector<MetricValues> values;   // by metric of the task's
    std::vector<MetricResult> results;  // by metric of the task's
    double seconds = 0;
    ExitCounts exits;  // of tokens that could exit; no loops without exits

    int64_t cut_requests() const;  // that lost tokens on the left
};

// Requests of a task. Throws what make_requests() and check_metric() throw, Error(input) for no items.
TaskRun prepare_task(Task task, const Tokenizer& tokenizer, const PromptOptions& options);

// Tokens that the longest request needs in a KV cache.
int64_t context_needed(std::span<const TaskRun> runs);

// Identifies runs whose answers are the same: the model's hash, how it is run, and every request.
std::string run_key(const std::string& model_hash, const std::string& settings,
                    std::span<const TaskRun> runs);

// Answers all requests and fills in answers, values and results; shows progress. Those of group() share the
// items, and all get everything. `work` may be null, and has this process's answers only; `index` is the
// run's place in it.
void run_task(TaskRun& run, TaskEngine& engine, const Tokenizer& tokenizer, WorkFile* work, size_t index);
// The same with exits, in an engine with room for ExitAnswers::sequences().
void run_task(TaskRun& run, BatchEngine& engine, const ExitPolicy& policy, const Tokenizer& tokenizer,
              WorkFile* work, size_t index);

}  // namespace refold
