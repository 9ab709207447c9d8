#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "eval/log_softmax.h"

namespace refold {
namespace {

struct Sums {
    double nll = 0, squares = 0;
    int64_t count = 0;
    double mean() const { return nll / static_cast<double>(count); }
};

PerplexityOptions checked(PerplexityOptions o, const Engine& engine) {
    if (o.stride == 0) o.stride = o.context;
    if (o.context < 2 || o.context > engine.context()) {
        fail(ErrorCode::usage, "ppl", "--context must be 2 to {}, got {}", engine.context(), o.context);
    }
    if (o.stride < 1 || o.stride > o.context)
        fail(ErrorCode::usage, "ppl", "--stride must be 1 to --context ({}), got {}", o.context, o.stride);
    if (o.max_windows < 0)
        fail(ErrorCode::usage, "ppl", "--max-windows must not be negative, got {}", o.max_windows);
    return o;
}

// Scores tokens [first_scored, window.size()) of a window.
void score_window(Engine& engine, std::span<const int32_t> window, size_t first_scored, Sums& sums,
                  Progress& progress) {
    engine.truncate(0);
    const auto n_vocab = static_cast<size_t>(engine.n_vocab());
    std::vector<double> nll;
    // The logits after the last token predict nothing that is scored.
    engine.evaluate_all(window.first(window.size() - 1), [&](size_t first, std::span<const float> logits) {
        const size_t rows = logits.size() / n_vocab;
        nll.assign(rows, 0.0);
        const size_t begin = first + 1 >= first_scored ? 0 : std::min(rows, first_scored - first - 1);
        parallel_for(static_cast<int64_t>(rows - begin), engine.threads(), [&](int64_t i) {
            const size_t row = begin + static_cast<size_t>(i);
            const auto part = logits.subspan(row * n_vocab, n_vocab);
            nll[row] =
                log_sum_exp(part) - static_cast<double>(part[static_cast<size_t>(window[first + row + 1])]);
        });
        for (size_t row = begin; row < rows; ++row) {
            sums.nll += nll[row];
            sums.squares += nll[row] * nll[row];
            ++sums.count;
        }
        progress.advance(rows, sums.count > 0 ? fmt::format("perplexity {:.4f}", std::exp(sums.mean())) : "");
    });
}

}  // namespace

PerplexityResult perplexity(Engine& engine, std::span<const int32_t> tokens, const PerplexityOptions& given) {
    const PerplexityOptions o = checked(given, engine);
    if (tokens.size() < 2)
        fail(ErrorCode::input, "ppl", "the text has {} tokens; at least 2 are needed", tokens.size());
    const auto total = static_cast<int64_t>(tokens.size());
    int64_t windows = total < o.context ? 1 : (total - o.context) / o.stride + 1;
    if (o.max_windows > 0) windows = std::min(windows, o.max_windows);

    const auto start = std::chrono::steady_clock::now();
    Sums sums;
    Progress progress("perplexity", static_cast<uint64_t>(windows * (std::min(o.context, total) - 1)),
                      "tokens");
    for (int64_t w = 0; w < windows; ++w) {
        const auto first = static_cast<size_t>(w * o.stride);
        const auto window =
            tokens.subspan(first, static_cast<size_t>(std::min(o.context, total - w * o.stride)));
        const int64_t first_scored = w == 0 ? 1 : std::max<int64_t>(1, o.context - o.stride);
        score_window(engine, window, static_cast<size_t>(first_scored), sums, progress);
    }
    progress.finish(fmt::format("perplexity {:.4f}", std::exp(sums.mean())));

    PerplexityResult result;
    result.windows = windows;
    result.tokens_scored = sums.count;
    result.mean_nll = sums.mean();
    result.perplexity = std::exp(result.mean_nll);
    const auto n = static_cast<double>(sums.count);
    const double variance =
        n > 1 ? std::max(0.0, (sums.squares - n * result.mean_nll * result.mean_nll) / (n - 1)) : 0.0;
    result.standard_error = result.perplexity * std::sqrt(variance / n);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result.tokens_per_s = static_cast<double>(windows * std::min(o.context, total)) / result.seconds;
    return result;
}

}  // namespace refold
