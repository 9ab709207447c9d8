#include "exit/exit_run.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "engine/finite_logits.h"

namespace refold {
namespace {

// Runs one chunk of the tokens through the loops.
class ExitChunk {
public:
    ExitChunk(Engine& engine, ExitedKv kv, const ExitRows& rows, size_t begin, size_t end)
        : engine_(engine), kv_(kv), rows_(rows), begin_(begin), exited_(end - begin) {}

    void run(const LoopSink& sink) {
        const size_t end = begin_ + exited_.size();
        if (kv_ == ExitedKv::share) return share(begin_, end, 0, sink);
        for (int32_t loop = 0; loop < engine_.capabilities().loops; ++loop) step(begin_, end, loop, sink);
    }

private:
    // A shared token is complete, and tokens must become complete in order, so later tokens wait.
    void share(size_t begin, size_t end, int32_t loop, const LoopSink& sink) {
        step(begin, end, loop, sink);
        if (loop + 1 == engine_.capabilities().loops) return;
        const auto exited = [&](size_t token) { return exited_[token - begin_] != 0; };
        for (size_t token = begin; token < end;) {
            if (exited(token)) {
                engine_.share(rows_.sequence, position(token), loop + 1);
                ++token;
                continue;
            }
            const size_t first = token;
            while (token < end && !exited(token)) ++token;
            share(first, token, loop + 1, sink);
        }
    }

    void step(size_t begin, size_t end, int32_t loop, const LoopSink& sink) {
        std::vector<Row> step;
        std::vector<size_t> asked;
        for (size_t token = begin; token < end; ++token) {
            const bool out = exited_[token - begin_], logits = !out && token >= rows_.first_exit;
            const bool keys_only = out && kv_ == ExitedKv::propagate;
            step.push_back({.sequence = rows_.sequence,
                            .position = position(token),
                            .loop = loop,
                            .token = loop == 0 ? rows_.tokens[token] : -1,
                            .work = keys_only ? Row::Work::keys_only : Row::Work::run,
                            .logits = logits});
            if (logits) asked.push_back(token);
        }
        take(asked, loop + 1, engine_.step({.rows = step}), sink);
    }

    int64_t position(size_t token) const { return rows_.position + static_cast<int64_t>(token); }

    void take(const std::vector<size_t>& tokens, int32_t loop, const StepOutput& output,
              const LoopSink& sink) {
        const auto n_vocab = static_cast<size_t>(engine_.capabilities().n_vocab);
        const auto count = static_cast<int64_t>(tokens.size());
        check_finite_logits(output.logits, engine_.capabilities().n_vocab,
                            [&](int64_t row) { return position(tokens[static_cast<size_t>(row)]); });
        parallel_for(count, count < 8 ? 1 : engine_.capabilities().threads, [&](int64_t i) {
            const auto row = static_cast<size_t>(i);
            const LoopLogits logits(output.logits.subspan(row * n_vocab, n_vocab),
                                    output.exited.empty() ? 0 : output.exited[row]);
            exited_[tokens[row] - begin_] = sink(tokens[row], loop, logits) ? 1 : 0;
        });
    }

    Engine& engine_;
    const ExitedKv kv_;
    const ExitRows& rows_;
    const size_t begin_;
    std::vector<uint8_t> exited_;
};

}  // namespace

void run_with_exits(Engine& engine, ExitedKv kv, const ExitRows& rows, const LoopSink& sink) {
    const auto size = static_cast<size_t>(engine.capabilities().max_rows);
    for (size_t begin = 0; begin < rows.tokens.size(); begin += size)
        ExitChunk(engine, kv, rows, begin, std::min(begin + size, rows.tokens.size())).run(sink);
}

int64_t exit_chunk(int64_t n_vocab) {
    return std::min<int64_t>(static_cast<int64_t>(logits_of_step(n_vocab)), 512);
}

}  // namespace refold
