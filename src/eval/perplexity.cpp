#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/group.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "eval/gather_windows.h"
#include "eval/protocols.h"
#include "exit/log_softmax.h"

namespace refold {
namespace {

// exp(sum / units) or sum / units / ln 2, with the standard error of the ratio of two sums over documents.
struct Ratio {
    double mean;
    std::optional<double> standard_error;
};

template <typename Units>
Ratio ratio_of(const PerplexityPlan& plan, const PerplexityResult& result, Units&& units) {
    const size_t n = plan.items.size();
    double nll = 0, total = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) {
        nll += result.item_nll[i];
        total += units(i);
    }
    const double mean = nll / total;
    if (n < 2) return {mean, std::nullopt};
    for (size_t i = 0; i < n; ++i) squares += std::pow(result.item_nll[i] - mean * units(i), 2);
    const auto count = static_cast<double>(n);
    return {mean, std::sqrt(count / (count - 1) * squares) / total};
}

PerplexityMeasure as_perplexity(const Ratio& ratio) {
    const double value = std::exp(ratio.mean);
    if (!ratio.standard_error) return {value, std::nullopt};
    return {value, value * *ratio.standard_error};
}

PerplexityMeasure as_bits(const Ratio& ratio) {
    const double bit = std::log(2.0);
    if (!ratio.standard_error) return {ratio.mean / bit, std::nullopt};
    return {ratio.mean / bit, *ratio.standard_error / bit};
}

void add_measures(const PerplexityPlan& plan, PerplexityResult& result) {
    const auto words = [&](size_t i) { return static_cast<double>(plan.items[i].words); };
    const auto bytes = [&](size_t i) { return static_cast<double>(plan.items[i].bytes); };
    result.word_perplexity = as_perplexity(ratio_of(plan, result, words));
    const Ratio per_byte = ratio_of(plan, result, bytes);
    result.byte_perplexity = as_perplexity(per_byte);
    result.bits_per_byte = as_bits(per_byte);
}

}  // namespace

int64_t PerplexityPlan::context_needed() const {
    int64_t longest = 0;
    for (const auto& w : windows) longest = std::max(longest, static_cast<int64_t>(w.rest.size()));
    return longest;
}

int64_t PerplexityPlan::tokens_evaluated() const {
    int64_t sum = 0;
    for (const auto& w : windows) sum += static_cast<int64_t>(w.rest.size());
    return sum;
}

int64_t PerplexityPlan::tokens_scored() const {
    int64_t sum = 0;
    for (const auto& w : windows) sum += w.scored();
    return sum;
}

int64_t PerplexityPlan::tokens_of_text() const {
    int64_t sum = 0;
    for (const auto& t : tokens) sum += static_cast<int64_t>(t.size());
    return sum;
}

std::vector<double> PerplexityResult::running() const {
    std::vector<double> out;
    double nll = 0;
    int64_t tokens = 0;
    for (size_t i = 0; i < item_nll.size(); ++i) {
        nll += item_nll[i];
        tokens += item_tokens[i];
        out.push_back(std::exp(nll / static_cast<double>(tokens)));
    }
    return out;
}

WindowPass::WindowPass(SingleSequence& sequence, const PerplexityWindow& window)
    : sequence_(sequence),
      tokens_{window.first},
      first_scored_(window.first_scored),
      next_scored_(window.first_scored) {
    tokens_.insert(tokens_.end(), window.rest.begin(), window.rest.end());
    sequence_.truncate(0);
    if (first_scored_ == 1) return;
    // Of the tokens before the first scored one only the last row of logits is needed.
    row_ = sequence_.evaluate(std::span(tokens_).first(first_scored_));
    evaluated_ = first_scored_;
}

bool WindowPass::next(size_t tokens, const ScoredSink& sink) {
    if (!row_.empty()) {
        score(std::exchange(row_, {}), sink);
        return true;
    }
    // The logits after the last token predict nothing.
    const size_t count = std::min(tokens, tokens_.size() - 1 - evaluated_);
    if (count == 0) return false;
    const auto part = std::span<const int32_t>(tokens_).subspan(evaluated_, count);
    evaluated_ += count;
    sequence_.evaluate_all(part, [&](size_t, std::span<const float> logits) { score(logits, sink); });
    return true;
}

void WindowPass::score(std::span<const float> logits, const ScoredSink& sink) {
    const auto n_vocab = static_cast<size_t>(sequence_.capabilities().n_vocab);
    nll_.resize(logits.size() / n_vocab);
    parallel_for(static_cast<int64_t>(nll_.size()), sequence_.capabilities().threads, [&](int64_t i) {
        const auto row = static_cast<size_t>(i);
        const auto part = logits.subspan(row * n_vocab, n_vocab);
        const auto token = static_cast<size_t>(tokens_[next_scored_ + row]);
        nll_[row] = log_sum_exp(part) - static_cast<double>(part[token]);
    });
    const size_t first = next_scored_ - first_scored_;
    next_scored_ += nll_.size();
    sink(first, logits, nll_);
}

PerplexitySums::PerplexitySums(const PerplexityPlan& plan)
    : plan_(plan), nll_(plan.items.size()), tokens_(plan.items.size()), expected_(plan.items.size()) {
    for (const auto& w : plan.windows) expected_[w.item] += w.scored();
}

void PerplexitySums::add(const PerplexityWindow& window, std::span<const double> nll) {
    const size_t item = window.item;
    for (const double x : nll) {
        sum_ += x;
        squares_ += x * x;
        nll_[item] += x;
    }
    count_ += static_cast<int64_t>(nll.size());
    tokens_[item] += static_cast<int64_t>(nll.size());
    if (tokens_[item] < expected_[item]) return;
    words_ += static_cast<double>(plan_.items[item].words);
    nll_of_words_ += nll_[item];
}

std::string PerplexitySums::note() const {
    if (words_ > 0) return fmt::format("word perplexity {:.4f}", std::exp(nll_of_words_ / words_));
    return count_ > 0 ? fmt::format("perplexity {:.4f}", std::exp(sum_ / static_cast<double>(count_))) : "";
}

PerplexityResult PerplexitySums::result(double seconds) const {
    PerplexityResult r;
    r.windows = static_cast<int64_t>(plan_.windows.size());
    r.tokens_scored = count_;
    const auto n = static_cast<double>(count_);
    r.mean_nll = sum_ / n;
    r.perplexity = std::exp(r.mean_nll);
    const double variance = n > 1 ? std::max(0.0, (squares_ - n * r.mean_nll * r.mean_nll) / (n - 1)) : 0.0;
    r.standard_error = r.perplexity * std::sqrt(variance / n);
    r.item_nll = nll_;
    r.item_tokens = tokens_;
    if (plan_.options.protocol == PerplexityProtocol::lm_eval) add_measures(plan_, r);
    r.seconds = seconds;
    r.tokens_per_s = static_cast<double>(plan_.tokens_evaluated()) / seconds;
    return r;
}

PerplexityResult measure_perplexity(SingleSequence& sequence, const PerplexityPlan& plan) {
    if (plan.context_needed() > sequence.capabilities().context)
        fail(ErrorCode::usage, "ppl", "--context must be at most {}, got {}", sequence.capabilities().context,
             plan.context_needed());
    const auto start = std::chrono::steady_clock::now();
    const Group& processes = group();
    uint64_t own = 0;
    for (size_t w = 0; w < plan.windows.size(); ++w)
        if (processes.owns(w)) own += plan.windows[w].rest.size();
    std::vector<std::vector<double>> nll(plan.windows.size());
    PerplexitySums shown(plan);
    Progress progress("perplexity", own, "tokens");
    for (size_t w = 0; w < plan.windows.size(); ++w) {
        if (!processes.owns(w)) continue;
        const PerplexityWindow& window = plan.windows[w];
        WindowPass pass(sequence, window);
        progress.advance(window.first_scored - 1, shown.note());
        const auto add = [&](size_t, std::span<const float>, std::span<const double> scored) {
            nll[w].insert(nll[w].end(), scored.begin(), scored.end());
            shown.add(window, scored);
            progress.advance(scored.size(), shown.note());
        };
        while (pass.next(window.rest.size(), add)) continue;
    }
    if (processes.size() > 1) gather_windows(nll, plan);
    // In the order of the text, so that sums are the same for any number of processes.
    PerplexitySums sums(plan);
    for (size_t w = 0; w < plan.windows.size(); ++w) sums.add(plan.windows[w], nll[w]);
    progress.finish(sums.note());
    return sums.result(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

PerplexityResult perplexity(SingleSequence& sequence, std::span<const int32_t> tokens,
                            const PerplexityOptions& options) {
    return measure_perplexity(sequence, plan_windows({tokens.begin(), tokens.end()}, options));
}

}  // namespace refold
