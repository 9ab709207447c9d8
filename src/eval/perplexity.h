// Perplexity of a text by windows: non-overlapping by default, or with a stride.
#pragma once

#include <cstdint>
#include <span>

#include "engine/engine.h"

namespace refold {

struct PerplexityOptions {
    int64_t context = 1024;   // tokens per window
    int64_t stride = 0;       // tokens between windows; 0: context (no overlap)
    int64_t max_windows = 0;  // 0: all
};

struct PerplexityResult {
    double perplexity = 0;      // exp(mean negative log likelihood)
    double standard_error = 0;  // of the perplexity, from the spread of the tokens' log likelihoods
    double mean_nll = 0;        // natural logarithm, per scored token
    int64_t tokens_scored = 0;
    int64_t windows = 0;
    double seconds = 0;
    double tokens_per_s = 0;  // evaluated tokens
};

// Window w holds tokens [w * stride, w * stride + context); of a window every token is scored that was not
// scored by an earlier window and has a token before it in the window. Only full windows count; a text
// shorter than one window is one short window. Throws Error(usage) for options out of range or a context
// beyond the engine's, Error(input) for fewer than two tokens.
PerplexityResult perplexity(Engine& engine, std::span<const int32_t> tokens,
                            const PerplexityOptions& options);

}  // namespace refold
