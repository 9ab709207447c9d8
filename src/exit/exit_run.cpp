#include "exit/exit_run.h"

#include <algorithm>
#include <vector>

#include "core/parallel.h"

namespace refold {
namespace {

// A piece of the tokens on its way through the loops.
class Piece {
public:
    Piece(BatchEngine& engine, ExitedKv kv, const ExitRows& rows, size_t begin, size_t end)
        : engine_(engine), kv_(kv), rows_(rows), begin_(begin), exited_(end - begin) {}

    void run(const LoopSink& sink) {
        const size_t end = begin_ + exited_.size();
        if (kv_ == ExitedKv::share) return share(begin_, end, 0, sink);
        for (int32_t stage = 0; stage < engine_.stages(); ++stage) step(begin_, end, stage, sink);
    }

private:
    // Tokens that are shared are complete, and tokens become complete in their order.
    void share(size_t begin, size_t end, int32_t stage, const LoopSink& sink) {
        step(begin, end, stage, sink);
        if (stage + 1 == engine_.stages()) return;
        const auto exited = [&](size_t token) { return exited_[token - begin_] != 0; };
        for (size_t token = begin; token < end;) {
            if (exited(token)) {
                engine_.share(rows_.sequence, position(token), stage + 1);
                ++token;
                continue;
            }
            const size_t first = token;
            while (token < end && !exited(token)) ++token;
            share(first, token, stage + 1, sink);
        }
    }

    void step(size_t begin, size_t end, int32_t stage, const LoopSink& sink) {
        std::vector<BatchRow> step;
        std::vector<size_t> asked;
        for (size_t token = begin; token < end; ++token) {
            const bool out = exited_[token - begin_], logits = !out && token >= rows_.first_exit;
            const bool keys_only = out && kv_ == ExitedKv::propagate;
            step.push_back({.sequence = rows_.sequence,
                            .position = position(token),
                            .stage = stage,
                            .token = stage == 0 ? rows_.tokens[token] : -1,
                            .work = keys_only ? BatchRow::Work::keys_only : BatchRow::Work::run,
                            .logits = logits});
            if (logits) asked.push_back(token);
        }
        take(asked, stage + 1, engine_.step(step), sink);
    }

    int64_t position(size_t token) const { return rows_.position + static_cast<int64_t>(token); }

    void take(const std::vector<size_t>& tokens, int32_t loop, std::span<const float> logits,
              const LoopSink& sink) {
        const auto n_vocab = static_cast<size_t>(engine_.n_vocab());
        const auto count = static_cast<int64_t>(tokens.size());
        parallel_for(count, count < 8 ? 1 : engine_.threads(), [&](int64_t i) {
            const auto row = static_cast<size_t>(i);
            exited_[tokens[row] - begin_] =
                sink(tokens[row], loop, logits.subspan(row * n_vocab, n_vocab)) ? 1 : 0;
        });
    }

    BatchEngine& engine_;
    const ExitedKv kv_;
    const ExitRows& rows_;
    const size_t begin_;
    std::vector<uint8_t> exited_;
};

}  // namespace

void run_with_exits(BatchEngine& engine, ExitedKv kv, const ExitRows& rows, const LoopSink& sink) {
    const auto size = static_cast<size_t>(engine.max_rows());
    for (size_t begin = 0; begin < rows.tokens.size(); begin += size)
        Piece(engine, kv, rows, begin, std::min(begin + size, rows.tokens.size())).run(sink);
}

int64_t exit_chunk(int64_t n_vocab) {
    return std::min<int64_t>(static_cast<int64_t>(logits_of_step(n_vocab)), 512);
}

}  // namespace refold
