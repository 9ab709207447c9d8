// A client's end of a request.
#pragma once

#include <chrono>
#include <optional>

#include "generation/request.h"

namespace refold {

// Destroying it cancels the request.
class Generation {
public:
    virtual ~Generation() = default;
    // Waits for the next event, which holds everything since the previous one. Nothing when none came in
    // time, and at once after the last event.
    virtual std::optional<GenerationEvent> next(std::chrono::milliseconds timeout) = 0;
    virtual void cancel() = 0;
};

}  // namespace refold
