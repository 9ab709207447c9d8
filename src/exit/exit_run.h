// Tokens that are known (a prompt, a text that is scored) through an engine by depth, loop by loop.
#pragma once

#include <functional>
#include <span>

#include "engine/batch.h"
#include "exit/exit_policy.h"

namespace refold {

struct ExitRows {
    int32_t sequence = 0;
    int64_t position = 0;             // of the first token; those before it are complete
    std::span<const int32_t> tokens;  // all are complete afterwards
    size_t first_exit = 0;            // tokens before it run all loops, without logits
};

// Called once behind every loop that a token from ExitRows::first_exit on is run in before it exits, by
// several threads at once; true: it exits (behind the last loop that means nothing). `token` counts through
// ExitRows::tokens, loops from 1.
using LoopSink = std::function<bool(size_t token, int32_t loop, std::span<const float> logits)>;

// The results are those of running token by token: what a token attends to at a loop is there before it.
// Needs room for the tokens in their sequence; at most max_rows() logits are in memory at a time.
void run_with_exits(BatchEngine& engine, ExitedKv kv, const ExitRows& rows, const LoopSink& sink);

// EngineOptions::chunk with which the logits of a step are logits_of_step() at most.
int64_t exit_chunk(int64_t n_vocab);

}  // namespace refold
