// One thread at a time may use a model: the others wait for their turn.
#pragma once

#include <condition_variable>
#include <mutex>
#include <stop_token>

#include "refold/error.h"

namespace refold::python {

class Turns {
public:
    class Turn {
    public:
        // Throws Error(interrupted) when cancelled while waiting.
        Turn(Turns& turns, const std::stop_token& stop) : turns_(turns) {
            std::unique_lock lock(turns_.mutex_);
            if (!turns_.changed_.wait(lock, stop, [&] { return !turns_.taken_; }))
                throw Error(ErrorCode::interrupted, "[python] cancelled");
            turns_.taken_ = true;
        }
        ~Turn() {
            const std::lock_guard lock(turns_.mutex_);
            turns_.taken_ = false;
            turns_.changed_.notify_one();
        }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

    private:
        Turns& turns_;
    };

private:
    std::mutex mutex_;
    std::condition_variable_any changed_;
    bool taken_ = false;
};

}  // namespace refold::python
