// Stops a fake engine at a chosen step.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>

#include "engine/engine.h"

namespace refold {

// Blocks the engine's steps until it is opened.
class Gate {
public:
    std::function<void(std::span<const Row>)> hook() {
        return [this](std::span<const Row>) {
            std::unique_lock lock(mutex_);
            reached_ = true;
            changed_.notify_all();
            changed_.wait(lock, [this] { return open_; });
        };
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
