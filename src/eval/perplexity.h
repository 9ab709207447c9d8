// Perplexity of a text: scores windows of tokens and sums up their log likelihoods. eval/protocols.h cuts
// texts into windows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/single_sequence.h"

namespace refold {

enum class PerplexityProtocol {
    windows,    // whole windows, each token scored once; with a stride, windows overlap
    gptq,       // GPTQ, Wanda, SliceGPT: WikiText's rows joined by blank lines, windows without overlap
    llama_cpp,  // llama-perplexity: BOS begins every chunk, its second half is scored
    lm_eval,    // lm-evaluation-harness: document by document, rolling windows, by words and bytes
};

struct PerplexityOptions {
    PerplexityProtocol protocol = PerplexityProtocol::windows;
    int64_t context = 1024;   // tokens per window
    int64_t stride = 0;       // windows: tokens between windows; 0: context (no overlap)
    int64_t max_windows = 0;  // of lm_eval: documents; 0: all
};

// Tokens `first`, rest[0], rest[1], ... run from an empty KV cache. Those from index first_scored (>= 1) on
// are scored, each given all tokens of the window before it.
struct PerplexityWindow {
    int32_t first;
    std::span<const int32_t> rest;
    size_t first_scored;
    size_t item;

    int64_t scored() const { return static_cast<int64_t>(rest.size() + 1 - first_scored); }
};

// The unit of resampling and of pairing with another result: a window or a document.
struct PerplexityItem {
    std::string hash;  // equal if the same tokens or text are scored
    int64_t words = 0;
    int64_t bytes = 0;  // of lm_eval's documents
};

struct PerplexityPlan {
    PerplexityOptions options;                 // defaults filled in
    std::vector<std::vector<int32_t>> tokens;  // windows point into these
    std::vector<PerplexityWindow> windows;     // windows of an item are adjacent
    std::vector<PerplexityItem> items;
    std::string bos;   // BOS begins the "text", each "window" or each "document"; or "none"
    std::string form;  // lm_eval: document_form_name() of the documents

    PerplexityPlan() = default;
    PerplexityPlan(PerplexityPlan&&) = default;  // keeps the buffers of `tokens`
    PerplexityPlan& operator=(PerplexityPlan&&) = default;

    int64_t context_needed() const;    // tokens of the longest window
    int64_t tokens_evaluated() const;  // without the last of each window, which predicts nothing
    int64_t tokens_scored() const;
    int64_t tokens_of_text() const;
};

// A mean per unit (token, word, byte), weighted by units: as perplexity, exp(mean), or in bits.
struct PerplexityMeasure {
    double value = 0;
    std::optional<double> standard_error;  // none for a single item
};

struct PerplexityResult {
    double perplexity = 0;      // exp(mean negative log likelihood of a token)
    double standard_error = 0;  // of `perplexity`, from the spread of the tokens' log likelihoods
    double mean_nll = 0;        // natural logarithm, per scored token
    int64_t tokens_scored = 0;
    int64_t windows = 0;
    double seconds = 0;
    double tokens_per_s = 0;       // evaluated tokens
    std::vector<double> item_nll;  // sum per item
    std::vector<int64_t> item_tokens;
    // lm_eval: per unit of the original text; standard errors from the spread of documents (ratio estimate).
    std::optional<PerplexityMeasure> word_perplexity, byte_perplexity, bits_per_byte;

    // exp(mean) of the items so far, after each.
    std::vector<double> running() const;
};

// Runs the windows one after another; those of group() share them, and all get the result, which is the same
// for any number of processes. Throws Error(usage) when a window is longer than the sequence's context.
PerplexityResult measure_perplexity(SingleSequence& sequence, const PerplexityPlan& plan);

// The protocol `windows` on tokens: plan_windows() and measure_perplexity().
PerplexityResult perplexity(SingleSequence& sequence, std::span<const int32_t> tokens,
                            const PerplexityOptions& options);

// For those who look at the logits of more than one model:

// first: index among the window's scored tokens; logits [rows, n_vocab] that predict them, valid during the
// call; nll [rows]: their negative log likelihoods.
using ScoredSink =
    std::function<void(size_t first, std::span<const float> logits, std::span<const double> nll)>;

// A window in a sequence, part by part.
class WindowPass {
public:
    // Empties the sequence and runs the tokens before the first scored one. The window must live.
    WindowPass(SingleSequence& sequence, const PerplexityWindow& window);
    // Scores up to `tokens` more; false when there are none left.
    bool next(size_t tokens, const ScoredSink& sink);

private:
    void score(std::span<const float> logits, const ScoredSink& sink);

    SingleSequence& sequence_;
    std::vector<int32_t> tokens_;
    size_t first_scored_, next_scored_, evaluated_ = 0;
    std::span<const float> row_;  // logits that predict the first scored token, once known
    std::vector<double> nll_;
};

// Sums up the log likelihoods of WindowPass.
class PerplexitySums {
public:
    explicit PerplexitySums(const PerplexityPlan& plan);
    void add(const PerplexityWindow& window, std::span<const double> nll);
    // The protocol's main figure so far: "perplexity 12.3456"; for lm_eval, of the finished documents.
    std::string note() const;
    PerplexityResult result(double seconds) const;

private:
    const PerplexityPlan& plan_;
    std::vector<double> nll_;
    std::vector<int64_t> tokens_, expected_;  // per item: scored so far, and in all
    double sum_ = 0, squares_ = 0, words_ = 0, nll_of_words_ = 0;
    int64_t count_ = 0;
};

}  // namespace refold
