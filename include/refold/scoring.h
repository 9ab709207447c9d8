// Scoring: the probabilities that a model gives to text. All functions throw Error(interrupted) when
// cancelled.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "refold/control.h"
#include "refold/generation.h"

namespace refold {

// Log probabilities (natural logarithm) of tokens[1], tokens[2], ..., each given all tokens before it:
// [tokens - 1]. With `top`, each has that many likeliest tokens too.
// Throws Error(input) without tokens, for ids outside the vocabulary and for more tokens than the context.
std::vector<TokenLogprob> score(LanguageModel& model, std::span<const int32_t> tokens, int top = 0,
                                std::stop_token stop = {});
// The same for a text: BOS is added where the model asks for it.
std::vector<TokenLogprob> score(LanguageModel& model, const std::string& text, int top = 0,
                                std::stop_token stop = {});
// Log probability of a continuation after a context: the sum over the continuation's tokens.
double score_continuation(LanguageModel& model, const std::string& context, const std::string& continuation,
                          std::stop_token stop = {});

struct TextPerplexityOptions {
    int64_t context = 1024;   // tokens per window; at most the model's context
    int64_t stride = 0;       // tokens between the beginnings of windows; 0: no overlap
    int64_t max_windows = 0;  // 0: the whole text
};

struct TextPerplexity {
    double perplexity = 0;      // exp of the mean negative log likelihood of a token
    double standard_error = 0;  // of the perplexity, from the spread of the tokens' log likelihoods
    double mean_nll = 0;        // nats per token
    int64_t tokens = 0;         // that were scored
    int64_t windows = 0;
};

// Perplexity of a text, cut into windows that each start from an empty context; a token is scored once, by
// the first window that has a token before it. As `refold eval ppl`. Throws Error(usage) for options out of
// range, Error(input) for a text that is too short.
TextPerplexity perplexity(LanguageModel& model, const std::string& text,
                          const TextPerplexityOptions& options = {}, const Control& control = {});

}  // namespace refold
