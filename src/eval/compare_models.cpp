#include <chrono>

#include "core/argmax.h"
#include "core/error.h"
#include "core/group.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "eval/compare.h"
#include "eval/gather_windows.h"
#include "exit/log_softmax.h"

namespace refold {
namespace {

// Logits of both models are in memory for this many tokens.
constexpr size_t kTokensAtOnce = 128;

bool same_tokens(const PerplexityPlan& a, const PerplexityPlan& b) {
    return a.tokens == b.tokens &&
           std::equal(a.windows.begin(), a.windows.end(), b.windows.begin(), b.windows.end(),
                      [](const PerplexityWindow& x, const PerplexityWindow& y) {
                          return x.first == y.first && x.rest.size() == y.rest.size() &&
                                 x.first_scored == y.first_scored;
                      });
}

// What of a scored token says how near the two models are.
struct TokenAgreement {
    double divergence = 0;
    int64_t same = 0;  // 1: both have the same likeliest token
};

std::vector<TokenAgreement> agreement_of(std::span<const float> a, std::span<const float> b, size_t n_vocab,
                                         int threads) {
    std::vector<TokenAgreement> out(b.size() / n_vocab);
    parallel_for(static_cast<int64_t>(out.size()), threads, [&](int64_t i) {
        const size_t at = static_cast<size_t>(i) * n_vocab;
        const auto x = a.subspan(at, n_vocab), y = b.subspan(at, n_vocab);
        out[static_cast<size_t>(i)] = {kl_divergence(x, y), argmax(x) == argmax(y) ? 1 : 0};
    });
    return out;
}

// Per item: sum of divergences, number of tokens with the same likeliest token, number of tokens.
class Agreement {
public:
    explicit Agreement(size_t items) : rows_{3, std::vector<double>(items * 3)} {}

    void add(size_t item, std::span<const TokenAgreement> tokens) {
        double* const row = &rows_.values[item * 3];
        for (const TokenAgreement& token : tokens) {
            row[0] += token.divergence;
            row[1] += static_cast<double>(token.same);
        }
        row[2] += static_cast<double>(tokens.size());
    }

    LogitAgreement result(const BootstrapOptions& options) const {
        double sums[3] = {};
        for (size_t i = 0; i < rows_.values.size(); ++i) sums[i % 3] += rows_.values[i];
        LogitAgreement out{sums[0] / sums[2], sums[1] / sums[2], {}, {}};
        if (rows_.items() < 2) return out;
        out.kl_interval = paired_bootstrap(
            rows_, [](std::span<const double> s) { return s[0] / s[2]; }, options);
        out.top1_interval = paired_bootstrap(
            rows_, [](std::span<const double> s) { return s[1] / s[2]; }, options);
        return out;
    }

private:
    BootstrapRows rows_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run_side_by_side(SingleSequence& sequence_a, const PerplexityPlan& plan_a, SingleSequence& sequence_b,
                      const PerplexityPlan& plan_b, const BootstrapOptions& options, ModelComparison& out) {
    const auto start = std::chrono::steady_clock::now();
    const Group& processes = group();
    const size_t windows = plan_a.windows.size();
    uint64_t own = 0;
    for (size_t w = 0; w < windows; ++w)
        if (processes.owns(w)) own += plan_a.windows[w].rest.size();
    std::vector<std::vector<double>> nll_a(windows), nll_b(windows);
    std::vector<std::vector<TokenAgreement>> tokens(windows);
    PerplexitySums shown_a(plan_a), shown_b(plan_b);
    const auto n_vocab = static_cast<size_t>(sequence_a.capabilities().n_vocab);
    const int threads = sequence_a.capabilities().threads;
    std::vector<float> logits;
    Progress progress("compare", own, "tokens");
    for (size_t w = 0; w < windows; ++w) {
        if (!processes.owns(w)) continue;
        const PerplexityWindow& window = plan_a.windows[w];
        WindowPass pass_a(sequence_a, window), pass_b(sequence_b, plan_b.windows[w]);
        progress.advance(window.first_scored - 1);
        size_t begin = 0;  // index of the scored token of the first row of `logits`
        const auto keep = [&](size_t, std::span<const float> rows, std::span<const double> nll) {
            logits.insert(logits.end(), rows.begin(), rows.end());
            nll_a[w].insert(nll_a[w].end(), nll.begin(), nll.end());
            shown_a.add(window, nll);
        };
        const auto meet = [&](size_t first, std::span<const float> rows, std::span<const double> nll) {
            const auto of_a = std::span(logits).subspan((first - begin) * n_vocab, rows.size());
            for (const TokenAgreement& token : agreement_of(of_a, rows, n_vocab, threads))
                tokens[w].push_back(token);
            nll_b[w].insert(nll_b[w].end(), nll.begin(), nll.end());
            shown_b.add(window, nll);
        };
        while (pass_a.next(kTokensAtOnce, keep)) {
            pass_b.next(kTokensAtOnce, meet);
            const size_t rows = logits.size() / n_vocab;
            begin += rows;
            logits.clear();
            progress.advance(rows, fmt::format("A {}, B {}", shown_a.note(), shown_b.note()));
        }
    }
    if (processes.size() > 1) {
        gather_windows(nll_a, plan_a);
        gather_windows(nll_b, plan_b);
        gather_windows(tokens, plan_a);
    }
    // In the order of the text, so that sums are the same for any number of processes.
    PerplexitySums sums_a(plan_a), sums_b(plan_b);
    Agreement agreement(plan_a.items.size());
    for (size_t w = 0; w < windows; ++w) {
        const PerplexityWindow& window = plan_a.windows[w];
        sums_a.add(window, nll_a[w]);
        sums_b.add(window, nll_b[w]);
        agreement.add(window.item, tokens[w]);
    }
    progress.finish();
    const double seconds = seconds_since(start);
    out.a = sums_a.result(seconds);
    out.b = sums_b.result(seconds);
    out.logits = agreement.result(options);
}

}  // namespace

ModelComparison compare_models(SingleSequence& sequence_a, const PerplexityPlan& plan_a,
                               SingleSequence& sequence_b, const PerplexityPlan& plan_b,
                               const BootstrapOptions& options) {
    ModelComparison out;
    if (same_tokens(plan_a, plan_b) &&
        sequence_a.capabilities().n_vocab == sequence_b.capabilities().n_vocab) {
        run_side_by_side(sequence_a, plan_a, sequence_b, plan_b, options, out);
    } else if (plan_a.options.protocol == PerplexityProtocol::lm_eval) {
        out.a = measure_perplexity(sequence_a, plan_a);
        out.b = measure_perplexity(sequence_b, plan_b);
    } else {
        fail(ErrorCode::input, "compare",
             "the models have different vocabularies, so their perplexities are of different tokens - use "
             "--protocol lm-eval, which counts words and bytes");
    }
    out.differences = compare_samples(parse_samples(perplexity_samples(plan_a, out.a), "A"),
                                      parse_samples(perplexity_samples(plan_b, out.b), "B"), options);
    if (!out.logits)
        std::erase_if(out.differences.rows, [](const Difference& row) { return row.metric == "perplexity"; });
    return out;
}

}  // namespace refold
