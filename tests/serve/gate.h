// Stops a fake engine, or a thread, at a chosen step.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>

#include "engine/engine.h"

namespace refold {

// Blocks whoever passes until it is opened.
class Gate {
public:
    void pass() {
        std::unique_lock lock(mutex_);
        reached_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return open_; });
    }
    // For the engine's steps.
    std::function<void(std::span<const Row>)> hook() {
        return [this](std::span<const Row>) { pass(); };
    }
    void wait_until_reached() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return reached_; });
    }
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool reached_ = false, open_ = false;
};

}  // namespace refold
