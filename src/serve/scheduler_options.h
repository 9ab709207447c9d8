// Options of the scheduler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/engine.h"
#include "exit/exit_policy.h"
#include "generation/saved_prefixes.h"

namespace refold {

enum class BatchingPolicy {
    continuous,  // the next request takes the slot of a sequence that ends at once
    // "Vanilla": a batch is closed when it is full or 50 ms old. All its prompts run, then all its sequences
    // token by token, those that exit early waiting for the others. The next batch follows when all have
    // ended.
    fixed,
};

struct SchedulerOptions {
    int64_t slots = 8;   // sequences at a time
    int64_t queue = 64;  // requests that wait, beside those that have a slot; more are refused
    // Prompt tokens of one step beside the rows that generate: bounds the time between two tokens.
    int64_t prefill_rows = 256;
    // The most of the time that prompts take while others generate, in (0, 1]; 1: as much as their rows need.
    double prefill_share = 1;
    std::chrono::milliseconds timeout{600000};  // of a request, waiting included
    ExitPolicy exit = {};
    // Drafts by early loops, from the sequence itself, or of another model: see DecodingOptions.
    int64_t draft = 0;
    int32_t draft_loop = 1;
    int64_t lookup = 0;
    int64_t draft_tokens = 8;
    Engine* draft_model = nullptr;
    bool draft_always = false;
    // Keeps what ended sequences have in the KV cache until its room is needed: prompts that begin alike are
    // computed once.
    bool prefixes = false;
    // With `prefixes`: keeps them from one scheduler to the next.
    PrefixFile prefix_file = {};
    // Told what became of that file.
    std::function<void(const std::string& note)> note = {};
    BatchingPolicy batching = BatchingPolicy::continuous;
};

}  // namespace refold
