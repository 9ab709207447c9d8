// Continuous batching: the requests of all clients share the steps of one engine. In steps by loop the unit
// of work is one loop of one row (continuous depth-wise batching, Relaxed Recursive Transformers, section
// 2.4), else the whole model for one row.
#pragma once

#include <chrono>
#include <memory>

#include "engine/engine.h"
#include "generation/request.h"
#include "serve/generation.h"
#include "serve/scheduler_options.h"
#include "serve/status.h"
#include "text/tokenizer.h"

namespace refold {

class Scheduler {
public:
    // Holds on to both and starts one thread, the only one that runs the engine. Throws Error(usage) for
    // options out of range or that the engine's loops do not allow.
    Scheduler(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options);
    // As shutdown(0).
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // Null when the queue is full or the scheduler is shutting down. A generation ends where the context
    // does. Any thread. Throws Error(input) for a prompt that is empty, has ids outside the vocabulary or
    // does not fit the context (or the KV cache) together with the first generated token, if any is wanted;
    // Error(usage) for options out of range. Clients, told apart by any number, get slots in turn.
    std::unique_ptr<Generation> submit(GenerationRequest request, uint64_t client = 0);
    SchedulerStatus status() const;
    // The engine has lost its device, and all requests fail from now on. Any thread.
    bool lost() const;
    // Refuses new requests and waits for the others; those that run or wait after `grace` are ended.
    void shutdown(std::chrono::milliseconds grace);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
