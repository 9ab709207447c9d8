// Runs tasks on a model: requests, answers, figures.
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
    std::vector<MetricValues> values;   // by metric of the task
    std::vector<MetricResult> results;  // by metric of the task
    bool filled = false;                // the model is an encoder: texts fill masks
    double seconds = 0;
    ExitCounts exits;  // of tokens that may exit; zero loops without early exit

    int64_t cut_requests() const;  // number of requests that lost tokens on the left
};

// Makes the requests of a task. Throws as make_requests() and check_metric(), and Error(input) without items.
TaskRun prepare_task(Task task, const Tokenizer& tokenizer, const PromptOptions& options);

// Tokens of the longest request, with generated ones.
int64_t context_needed(std::span<const TaskRun> runs);

// Hash that identifies equal runs: the model's hash, the settings, and every request.
std::string run_key(const std::string& model_hash, const std::string& settings,
                    std::span<const TaskRun> runs);

// Answers all requests and fills in answers, values and results; shows progress. Those of group() share the
// items, and all get everything. `work` may be null, and has this process's answers only; `index` is the
// run's place in it.
void run_task(TaskRun& run, Engine& engine, const Tokenizer& tokenizer, WorkFile* work, size_t index);
// The same with exits, in an engine with room for ExitAnswers::sequences().
void run_task(TaskRun& run, Engine& engine, const ExitPolicy& policy, const Tokenizer& tokenizer,
              WorkFile* work, size_t index);

}  // namespace refold
