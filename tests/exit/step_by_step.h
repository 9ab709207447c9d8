// Early exit by its definition: one token at a time, one loop at a time.
#pragma once

#include "exit/exit_run.h"

namespace refold {

inline void run_step_by_step(Engine& engine, ExitedKv kv, const ExitRows& rows, const LoopSink& sink) {
    for (size_t t = 0; t < rows.tokens.size(); ++t) {
        const int64_t position = rows.position + static_cast<int64_t>(t);
        bool exited = false;
        for (int32_t loop = 0; loop < engine.capabilities().loops; ++loop) {
            if (exited && kv == ExitedKv::share) {
                engine.share(rows.sequence, position, loop);
                break;
            }
            const bool keys_only = exited && kv == ExitedKv::propagate;
            const Row row{.sequence = rows.sequence,
                          .position = position,
                          .loop = loop,
                          .token = loop == 0 ? rows.tokens[t] : -1,
                          .work = keys_only ? Row::Work::keys_only : Row::Work::run,
                          .logits = !exited && t >= rows.first_exit};
            const auto logits = engine.step({.rows = {&row, 1}}).logits;
            if (row.logits) exited = sink(t, loop + 1, logits);
        }
    }
}

}  // namespace refold
