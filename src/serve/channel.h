// What passes between the scheduler's thread and the client of one request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "serve/scheduler.h"

namespace refold {

class Channel {
public:
    // Events that the client has not fetched yet become one, so a slow client costs no more than its text.
    void push(GenerationEvent event);
    // As Generation::next(); nothing at once when the last event has been fetched.
    std::optional<GenerationEvent> next(std::chrono::milliseconds timeout);
    void cancel() { cancelled_ = true; }
    bool cancelled() const { return cancelled_; }

private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::optional<GenerationEvent> event_;
    bool over_ = false;  // the last event has been fetched
    std::atomic<bool> cancelled_ = false;
};

// `from` happened after `to`.
void append(GenerationEvent& to, GenerationEvent from);

std::unique_ptr<Generation> make_generation(std::shared_ptr<Channel> channel);

}  // namespace refold
