// Runs the choices of one HTTP request (prompts times n) through the scheduler, a few at a time, so that one
// request with many prompts does not fill the queue.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
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

    using Clock = std::chrono::steady_clock;

    struct Options {
        size_t choices = 1, most_at_once = 1;
        Clock::time_point deadline;  // of all choices together
        uint64_t client = 0;         // as Scheduler::submit() takes it
    };

    // Submits the first choice; `request` makes the request for a choice, of which only some exist at a time.
    // Throws ApiError: 429 when the queue is full, 503 when the server is `stopping`, 504 after the deadline,
    // 400 for a request that the scheduler refuses.
    Choices(Scheduler& scheduler, std::function<GenerationRequest(size_t)> request, const Options& options,
            const std::atomic<bool>& stopping);

    // The next event of any choice; nothing when none came in time. Throws as the constructor does, but waits
    // for room in the queue. Must not be called when all have finished.
    std::optional<Event> next(std::chrono::milliseconds timeout);
    bool finished() const { return running_.empty() && submitted_ == options_.choices; }

private:
    struct Running {
        size_t choice;
        std::unique_ptr<Generation> generation;
    };
    // Returns false when the queue is full.
    bool submit_next();
    std::optional<Event> poll();
    // The next event of one that runs.
    std::optional<Event> next_of(size_t running, std::chrono::milliseconds timeout);

    Scheduler& scheduler_;
    const std::atomic<bool>& stopping_;
    std::function<GenerationRequest(size_t)> request_;
    Options options_;
    size_t submitted_ = 0, turn_ = 0;
    Clock::time_point retry_;  // when to try again after the queue was full
    std::vector<Running> running_;
};

}  // namespace refold
