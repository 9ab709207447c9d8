// A request that has a slot.
#pragma once

#include <optional>

#include "generation/sequence.h"
#include "serve/request_queue.h"
#include "serve/status.h"

namespace refold {

class RunningRequest {
public:
    RunningRequest(Submitted submitted, Sequence sequence)
        : submitted_(std::move(submitted)), sequence_(std::move(sequence)) {}

    const Submitted& submitted() const { return submitted_; }
    Sequence& sequence() { return sequence_; }
    const Sequence& sequence() const { return sequence_; }
    bool finished() const { return sequence_.continuation().finished(); }
    void finish(FinishReason reason, std::string error = {}) {
        sequence_.continuation().finish(reason, std::move(error));
    }

    // Counts what the latest step brought.
    void count(SchedulerStatus& status);
    // Sends it to the client.
    void send();

private:
    Submitted submitted_;
    Sequence sequence_;
    int64_t counted_ = 0;                      // choices
    std::optional<Clock::time_point> latest_;  // of them
    std::optional<GenerationEvent> event_;     // counted, not sent
};

}  // namespace refold
