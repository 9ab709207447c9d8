// The thread that runs the engine: takes requests into slots and fills steps with their rows.
#pragma once

#include <list>
#include <mutex>

#include "serve/request_queue.h"
#include "serve/sequence.h"

namespace refold {

class Worker {
public:
    Worker(BatchEngine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options,
           RequestQueue& queue);

    // Until the queue is closed and nothing runs or waits.
    void run();
    // As of the end of the latest step. Any thread.
    SchedulerStatus status() const;

private:
    bool fixed() const { return options_.batching == BatchingPolicy::fixed; }
    void end_overdue();
    void admit();
    void start(Submitted submitted, int32_t id);
    void end(Submitted submitted, FinishReason reason, std::string error = {});
    void plan();
    bool holds_back(const Sequence& sequence) const;
    void step();
    void take_results(std::span<const float> logits);
    void count_rows();
    void fail_step(const std::string& error);
    void settle();
    void publish();

    BatchEngine& engine_;
    const Tokenizer& tokenizer_;
    const SchedulerOptions& options_;
    RequestQueue& queue_;
    std::list<Sequence> running_;  // in the order of their coming
    std::vector<Output> ended_;    // before they had a slot; to be told
    StepPlan plan_;
    SchedulerStatus status_;

    mutable std::mutex mutex_;
    SchedulerStatus published_;
};

}  // namespace refold
