// The thread that runs the engine: takes requests into slots and fills steps with their rows.
#pragma once

#include <atomic>
#include <exception>
#include <list>
#include <mutex>

#include "engine/engine.h"
#include "generation/drafting.h"
#include "serve/prompt_share.h"
#include "serve/request_queue.h"
#include "serve/running_request.h"
#include "serve/scheduler_options.h"

namespace refold {

class Worker {
public:
    // All four outlive it.
    Worker(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options, RequestQueue& queue);

    // Returns when the queue is closed and nothing runs or waits. The engine has no sequences then.
    void run();
    // As of the end of the latest step. Any thread.
    SchedulerStatus status() const;
    // The engine has lost its device, and all steps fail. Any thread.
    bool lost() const { return lost_; }

private:
    // A request that ended without a slot.
    struct Ended {
        std::shared_ptr<Channel> channel;
        GenerationEvent event;
    };

    bool fixed() const { return options_.batching == BatchingPolicy::fixed; }
    void note(const std::string& text) const;
    void load_prefixes();
    void save_prefixes() const;
    void end_overdue();
    void admit();
    void start(Submitted submitted, SharedSequences::Sequence& place);
    void end(const Submitted& submitted, FinishReason reason, std::string error = {});
    void end_next(const std::string& error);
    void plan();
    void plan_prompts(int64_t most);
    RunningRequest::Leader leader_of(const RunningRequest& request) const;
    void follow_leaders();
    bool holds_back(const Sequence& sequence) const;
    void step();
    void count_rows();
    void note_loss(const std::exception& error);
    void fail_step(const std::string& error);
    void settle();
    void leave(RunningRequest& request);
    void publish();

    Engine& engine_;
    const Tokenizer& tokenizer_;
    const SchedulerOptions& options_;
    const DecodingOptions decoding_;
    RequestQueue& queue_;
    SharedSequences sequences_;
    std::list<RunningRequest> running_;  // in the order of their arrival
    std::vector<Ended> ended_;           // to be sent
    StepPlan plan_;
    DecodingCounts counts_;
    Drafting drafting_;
    PromptShare prompt_share_;
    SchedulerStatus status_;

    mutable std::mutex mutex_;
    SchedulerStatus published_;
    std::atomic<bool> lost_ = false;
};

}  // namespace refold
