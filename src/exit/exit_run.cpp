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
        const int32_t loops = engine_.stages();
        for (int32_t stage = 0; stage < loops; ++stage) {
            const std::vector<BatchRow> step = rows_of(stage);
            if (step.empty()) return;
            const std::span<const float> logits = engine_.step(step);
            std::vector<size_t> asked;
            for (const BatchRow& row : step)
                if (row.logits) asked.push_back(static_cast<size_t>(row.position - rows_.position));
            take(asked, stage + 1, logits, sink);
            if (stage + 1 == loops || kv_ != ExitedKv::share) continue;
            for (const size_t token : asked)
                if (exited_[token - begin_])
                    engine_.share(rows_.sequence, rows_.position + static_cast<int64_t>(token), stage + 1);
        }
    }

private:
    std::vector<BatchRow> rows_of(int32_t stage) const {
        std::vector<BatchRow> step;
        for (size_t i = 0; i < exited_.size(); ++i) {
            const size_t token = begin_ + i;
            const bool out = exited_[i];
            if (out && kv_ == ExitedKv::share) continue;
            step.push_back(
                {.sequence = rows_.sequence,
                 .position = rows_.position + static_cast<int64_t>(token),
                 .stage = stage,
                 .token = stage == 0 ? rows_.tokens[token] : -1,
                 .work = out && kv_ == ExitedKv::propagate ? BatchRow::Work::keys_only : BatchRow::Work::run,
                 .logits = !out && token >= rows_.first_exit});
        }
        return step;
    }

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

int64_t exit_chunk(int64_t n_vocab) { return std::clamp<int64_t>((16 << 20) / n_vocab, 16, 512); }

}  // namespace refold
