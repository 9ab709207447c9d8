// The choices of one HTTP request - prompts times n - as generations of the scheduler, a few of them at a
// time, so that one request with many prompts does not fill the queue.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "serve/scheduler.h"

namespace refold {

class Choices {
public:
    struct Event {
        size_t choice = 0;
        GenerationEvent event;
    };

    // Submits the first ones. Throws ApiError: 429 when the queue is full, 503 when the server is
    // `stopping`, 400 for what the scheduler refuses.
    Choices(Scheduler& scheduler, std::vector<GenerationRequest> requests, size_t most_at_once,
            const std::atomic<bool>& stopping);

    // The next event of any choice; nothing when none came in time. Throws as the constructor does, but
    // waits for room in the queue. Not to be called when all have finished.
    std::optional<Event> next(std::chrono::milliseconds timeout);
    bool finished() const { return running_.empty() && submitted_ == requests_.size(); }

private:
    using Clock = std::chrono::steady_clock;
    struct Running {
        size_t choice;
        std::unique_ptr<Generation> generation;
    };
    // False when there is no room.
    bool submit_next();
    std::optional<Event> poll();

    Scheduler& scheduler_;
    const std::atomic<bool>& stopping_;
    std::vector<GenerationRequest> requests_;
    size_t most_at_once_, submitted_ = 0, turn_ = 0;
    Clock::time_point retry_;  // the queue was full: when to try again
    std::vector<Running> running_;
};

}  // namespace refold
