// Passes events from the scheduler's thread to the client of one request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "serve/generation.h"

namespace refold {

class Channel {
public:
    // Events that the client has not fetched yet become one, so a slow client costs no more than its text.
    void push(GenerationEvent event);
    // As Generation::next().
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

std::unique_ptr<Generation> make_generation(std::shared_ptr<Channel> channel);

}  // namespace refold
