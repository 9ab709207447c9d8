// Perplexity of a text: windows of tokens that are scored, and what their log likelihoods give. How a
// protocol cuts a text is in eval/protocols.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

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

// Tokens `first`, rest[0], rest[1], ... run from an empty cache; those from index first_scored (>= 1) to the
// end are scored, from logits that have seen all tokens of the window before them.
struct PerplexityWindow {
    int32_t first;
    std::span<const int32_t> rest;
    size_t first_scored;
    size_t item;

    int64_t scored() const { return static_cast<int64_t>(rest.size() + 1 - first_scored); }
};

// What is drawn when a result is resampled or paired with another one's: a window or a document.
struct PerplexityItem {
    std::string hash;  // equal where the same is scored
    int64_t words = 0;
    int64_t bytes = 0;  // of lm_eval's documents
};

struct PerplexityPlan {
    PerplexityOptions options;                 // defaults filled in
    std::vector<std::vector<int32_t>> tokens;  // that windows point into
    std::vector<PerplexityWindow> windows;     // those of an item lie together
    std::vector<PerplexityItem> items;
    std::string bos;   // where one is: "none", "text", "window" or "document"
    std::string form;  // lm_eval: of the documents: document_form_name()

    PerplexityPlan() = default;
    PerplexityPlan(PerplexityPlan&&) = default;  // the buffers of `tokens` stay where they are
    PerplexityPlan& operator=(PerplexityPlan&&) = default;

    int64_t context_needed() const;    // tokens of the longest window
    int64_t tokens_evaluated() const;  // the last of a window predicts nothing
    int64_t tokens_scored() const;
    int64_t tokens_of_text() const;
};

// A mean per unit (token, word, byte), weighted by units, as perplexity exp(mean) or in bits.
struct PerplexityMeasure {
    double value = 0;
    std::optional<double> standard_error;  // none where there is one item only
};

struct PerplexityResult {
    double perplexity = 0;      // exp(mean negative log likelihood of a token)
    double standard_error = 0;  // of it, from the spread of the tokens' log likelihoods
    double mean_nll = 0;        // natural logarithm, per scored token
    int64_t tokens_scored = 0;
    int64_t windows = 0;
    double seconds = 0;
    double tokens_per_s = 0;       // evaluated tokens
    std::vector<double> item_nll;  // sum per item
    std::vector<int64_t> item_tokens;
    // lm_eval: of the original text; standard errors from the spread of documents (ratio estimate).
    std::optional<PerplexityMeasure> word_perplexity, byte_perplexity, bits_per_byte;

    // exp(mean) of the items so far, after each.
    std::vector<double> running() const;
};

// Runs the windows one after another; those of group() share them, and all get the result, which is the same
// for any number of processes. Throws Error(usage) when a window is longer than the engine's context.
PerplexityResult measure_perplexity(Engine& engine, const PerplexityPlan& plan);

// The protocol `windows` on tokens: plan_windows() and measure_perplexity().
PerplexityResult perplexity(Engine& engine, std::span<const int32_t> tokens,
                            const PerplexityOptions& options);

// For those who look at the logits of more than one engine:

// first: index among the window's scored tokens; logits [rows, n_vocab] that predict them, valid during the
// call; nll [rows]: their negative log likelihoods.
using ScoredSink =
    std::function<void(size_t first, std::span<const float> logits, std::span<const double> nll)>;

// A window in an engine, part by part.
class WindowPass {
public:
    // Empties the engine's cache and runs the tokens before the first scored one. The window must live.
    WindowPass(Engine& engine, const PerplexityWindow& window);
    // Scores up to `tokens` more; false when there are none left.
    bool next(size_t tokens, const ScoredSink& sink);

private:
    void score(std::span<const float> logits, const ScoredSink& sink);

    Engine& engine_;
    std::vector<int32_t> tokens_;
    size_t first_scored_, next_scored_, evaluated_ = 0;
    std::span<const float> row_;  // that predicts the first scored token, where it is known
    std::vector<double> nll_;
};

// Sums up what WindowPass gives.
class PerplexitySums {
public:
    explicit PerplexitySums(const PerplexityPlan& plan);
    void add(const PerplexityWindow& window, std::span<const double> nll);
    // The figure that the protocol is known by, of all so far: "perplexity 12.3456"; lm_eval's is that of the
    // documents that are done.
    std::string note() const;
    PerplexityResult result(double seconds) const;

private:
    const PerplexityPlan& plan_;
    std::vector<double> nll_;
    std::vector<int64_t> tokens_, expected_;  // per item; expected: when it is done
    double sum_ = 0, squares_ = 0, words_ = 0, nll_of_words_ = 0;
    int64_t count_ = 0;
};

}  // namespace refold
