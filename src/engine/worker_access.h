#pragma once

#include <chrono>

namespace refold {

// How workers are reached (rpc_worker.h).
struct WorkerAccess {
    bool anywhere = false;  // also outside of the loopback and of private networks
    // For an answer, which can take as long as a step. Then the worker is lost.
    std::chrono::seconds patience{600};
};

}  // namespace refold
