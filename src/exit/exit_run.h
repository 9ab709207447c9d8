// Runs given tokens (a prompt, a text to score) through an engine loop by loop, with early exit.
#pragma once

#include <functional>
#include <span>

#include "engine/engine.h"
#include "exit/exit_policy.h"

namespace refold {

struct ExitRows {
    int32_t sequence = 0;
    int64_t position = 0;             // of the first token; all earlier tokens must be complete
    std::span<const int32_t> tokens;  // all are complete afterwards
    size_t first_exit = 0;            // tokens before this index run all loops, without logits
};

// Called for every token from ExitRows::first_exit on after each loop until the token exits, by several
// threads at once. Returns true to let it exit; ignored after the last loop. `token` is an index into
// ExitRows::tokens; loops count from 1.
using LoopSink = std::function<bool(size_t token, int32_t loop, const LoopLogits& logits)>;

// Gives the same results as running token by token, because the keys and values that a token attends to at a
// loop always exist before it runs. The sequence must have room for the tokens. At most max_rows() rows of
// logits are in memory at a time.
void run_with_exits(Engine& engine, ExitedKv kv, const ExitRows& rows, const LoopSink& sink);

// The EngineOptions::chunk with which a step has at most logits_of_step() rows of logits.
int64_t exit_chunk(int64_t n_vocab);

}  // namespace refold
