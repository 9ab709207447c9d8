// A request that has a slot.
#pragma once

#include <optional>

#include "generation/sequence.h"
#include "generation/shared_sequences.h"
#include "serve/request_queue.h"
#include "serve/status.h"

namespace refold {

class RunningRequest {
public:
    // `place` in the engine is the worker's.
    RunningRequest(Submitted submitted, SharedSequences::Sequence& place, Sequence sequence)
        : submitted_(std::move(submitted)),
          place_(&place),
          sequence_(std::move(sequence)),
          known_(static_cast<int64_t>(place.done)) {}

    const Submitted& submitted() const { return submitted_; }
    Sequence& sequence() { return sequence_; }
    const Sequence& sequence() const { return sequence_; }
    SharedSequences::Sequence& place() { return *place_; }
    const SharedSequences::Sequence& place() const { return *place_; }
    bool finished() const { return sequence_.continuation().finished(); }
    // Another request whose prompt begins with the same tokens, and which reads them first. Null: none.
    struct Leader {
        std::shared_ptr<const Channel> channel = {};
        int64_t tokens = 0;
    };
    Leader leader = {};
    // These tokens of the prompt are the leader's.
    void skip_to(int64_t tokens) {
        sequence_.skip_to(tokens);
        known_ = tokens;
    }

    // It ended by an error, as count() has found.
    bool failed() const { return event_ && event_->finished == FinishReason::error; }
    void finish(FinishReason reason, std::string error = {}) {
        sequence_.continuation().finish(reason, std::move(error));
    }

    // Counts what the latest step brought.
    void count(SchedulerStatus& status);
    // Sends it to the client.
    void send();

private:
    void count_end(SchedulerStatus& status, Clock::time_point now) const;

    Submitted submitted_;
    SharedSequences::Sequence* place_;
    Sequence sequence_;
    const Clock::time_point started_ = Clock::now();
    int64_t known_;                                    // tokens of the prompt, until the client is told
    int64_t counted_ = 0;                              // choices
    std::optional<Clock::time_point> first_, latest_;  // of them
    std::optional<GenerationEvent> event_;             // counted, not sent
};

}  // namespace refold
