// Text generation: options, results, streaming and cancellation.
//
//     refold::LanguageModel model("smollm2-135m-instruct");
//     refold::GenerationOptions options;
//     options.max_tokens = 64;
//     options.sampling.temperature = 0.8;
//     const refold::GenerationResult result = refold::generate(model, "Once upon a time", options);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "refold/output_format.h"

namespace refold {

// How the next token is chosen from the model's logits. The steps are those of llama.cpp, in its order: bias,
// penalties, top-k, typical-p, top-p, min-p, temperature, draw; with Mirostat: bias, penalties, temperature,
// Mirostat, draw. Greedy choice (temperature 0) applies bias and penalties and takes the largest logit, the
// first of equal ones.
//
// Equal options, seed and logits give equal tokens.
struct SamplingOptions {
    // Divides the logits; at least 0. 0 is greedy.
    double temperature = 0;
    // Keeps the so many likeliest tokens; at least 0. 0 keeps all.
    int top_k = 40;
    // Keeps the smallest set of likeliest tokens with at least this probability together; in (0, 1]. 1 keeps
    // all.
    double top_p = 0.95;
    // Keeps tokens that are at least this likely compared with the likeliest one; in [0, 1]. 0 keeps all.
    double min_p = 0;
    // Keeps the tokens whose information is closest to the distribution's entropy, as many as have this
    // probability together (locally typical sampling, Meister et al. 2022); in (0, 1]. 1 keeps all.
    double typical_p = 1;
    // Mirostat (Basu et al. 2021), version 1 or 2, in place of the steps from top-k to min-p: keeps so many
    // of the likeliest tokens that chosen ones carry `mirostat_tau` bits on average. 0: off.
    int mirostat = 0;
    double mirostat_tau = 5;    // bits per token; above 0
    double mirostat_eta = 0.1;  // how far a chosen token moves the bound; in [0, 1]

    // Penalties look at the last `penalty_last_n` tokens of prompt and generated text; at least -1. 0 turns
    // the penalties off, -1 looks at all tokens.
    int64_t penalty_last_n = 64;
    // Divides positive logits of tokens in the window and multiplies negative ones; above 0. 1 is off.
    double repetition_penalty = 1;
    // Subtracted once from the logits of tokens in the window; in [-2, 2]. 0 is off.
    double presence_penalty = 0;
    // Subtracted from the logits of tokens in the window as often as they occur there; in [-2, 2]. 0 is off.
    double frequency_penalty = 0;
    // Added to the logits of these tokens; in [-100, 100], or -infinity, which bans the token.
    std::map<int32_t, double> logit_bias = {};

    uint32_t seed = 0;
};

struct GenerationOptions {
    SamplingOptions sampling = {};
    // Most tokens to generate; at least 0.
    int64_t max_tokens = 128;
    // Texts that end the generation and are left out of it, wherever token boundaries fall. Empty ones are
    // ignored.
    std::vector<std::string> stop = {};
    // Tokens that end the generation and are left out of it, beside the model's end-of-generation tokens.
    std::vector<int32_t> stop_tokens = {};
    // Goes on after the model's end-of-generation tokens, which become part of the result.
    bool ignore_eos = false;
    // What the generated text must look like.
    OutputFormat format = {};
    // Log probabilities of the chosen tokens, each with so many likeliest tokens; at most the vocabulary. -1:
    // none. They are the model's: before bias, penalties and temperature.
    int logprobs = -1;
};

struct TokenLogprob {
    int32_t token = 0;
    double logprob = 0;                           // natural logarithm
    std::vector<std::pair<int32_t, double>> top;  // the likeliest tokens, best first
};

enum class FinishReason {
    stop,       // a stop text, a stop token, an end-of-generation token, or the end of a format
    length,     // max_tokens, or the context is full
    cancelled,  // by the caller
    timeout,    // a server's limit
    shutdown,   // the server is being stopped
    error,
};

struct GenerationResult {
    // The generated text without the prompt. Whole UTF-8 characters; bytes that are none become U+FFFD.
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<TokenLogprob> logprobs;         // [tokens], where GenerationOptions::logprobs asked for them
    std::vector<TokenLogprob> prompt_logprobs;  // of the prompt's second token on; by score() only
    // Of a looped model that may exit early: the loop that each token was chosen after, from 1. [tokens]
    std::vector<int32_t> exits;

    FinishReason finished = FinishReason::length;
    std::string stop_text;             // the stop text that ended the generation; else empty
    std::optional<int32_t> end_token;  // the token that ended it, which `tokens` does not hold
    bool context_full = false;         // the context ended it, not max_tokens

    int64_t prompt_tokens = 0;
    int64_t evaluated_tokens = 0;  // of them: not those that an earlier prompt shares
    double prefill_seconds = 0;    // from the start to the logits after the prompt
    double decode_seconds = 0;     // from there to the choice of the last token

    double prefill_tokens_per_s() const;
    double decode_tokens_per_s() const;  // of the tokens after the first; 0 with fewer than two
};

// Gets the text that is new and final: whole characters, and nothing that may still become a stop text.
// Returning false cancels the generation, which then ends with FinishReason::cancelled.
using TextCallback = std::function<bool(std::string_view text)>;
// The same for many prompts; `prompt` is an index.
using PromptTextCallback = std::function<bool(size_t prompt, std::string_view text)>;

class LanguageModel;

// Continues a prompt. BOS is added where the model asks for it, and special tokens written in the prompt
// become their ids. `stop` cancels between two steps, from any thread.
//
// Throws Error(usage) for options out of range, Error(input) for a prompt that is empty or does not fit the
// context.
GenerationResult generate(LanguageModel& model, const std::string& prompt,
                          const GenerationOptions& options = {}, const TextCallback& on_text = {},
                          std::stop_token stop = {});
// The same for token ids, taken as they are.
GenerationResult generate(LanguageModel& model, std::span<const int32_t> prompt,
                          const GenerationOptions& options = {}, const TextCallback& on_text = {},
                          std::stop_token stop = {});

// Continues many prompts; results are in the order of the prompts. As many run at a time as the model was
// loaded for (LanguageModelOptions::sequences), and tokens that several prompts begin with are read once.
std::vector<GenerationResult> generate(LanguageModel& model, std::span<const std::string> prompts,
                                       const GenerationOptions& options = {},
                                       const PromptTextCallback& on_text = {}, std::stop_token stop = {});
// The same for token ids, taken as they are.
std::vector<GenerationResult> generate(LanguageModel& model, std::span<const std::vector<int32_t>> prompts,
                                       const GenerationOptions& options = {},
                                       const PromptTextCallback& on_text = {}, std::stop_token stop = {});

}  // namespace refold
