// The definition of early exit: one token after the other, one loop after the other.
#pragma once

#include "exit/exit_run.h"

namespace refold {

inline void run_step_by_step(BatchEngine& engine, ExitedKv kv, const ExitRows& rows, const LoopSink& sink) {
    for (size_t t = 0; t < rows.tokens.size(); ++t) {
        const int64_t position = rows.position + static_cast<int64_t>(t);
        bool exited = false;
        for (int32_t stage = 0; stage < engine.stages(); ++stage) {
            if (exited && kv == ExitedKv::share) {
                engine.share(rows.sequence, position, stage);
                break;
            }
            const bool keys_only = exited && kv == ExitedKv::propagate;
            const BatchRow row{.sequence = rows.sequence,
                               .position = position,
                               .stage = stage,
                               .token = stage == 0 ? rows.tokens[t] : -1,
                               .work = keys_only ? BatchRow::Work::keys_only : BatchRow::Work::run,
                               .logits = !exited && t >= rows.first_exit};
            const auto logits = engine.step({&row, 1});
            if (row.logits) exited = sink(t, stage + 1, logits);
        }
    }
}

}  // namespace refold
