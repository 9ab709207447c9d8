// A request to generate, and the events that answer it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "refold/generation.h"

namespace refold {

class Grammar;
class Sampler;

struct GenerationRequest : GenerationOptions {
    GenerationRequest() { max_tokens = 16; }

    std::vector<int32_t> prompt;  // at least one token
    bool prompt_logprobs =
        false;  // of the prompt's tokens too, with as many likeliest ones as `logprobs` says
    std::chrono::milliseconds timeout{0};  // until the end; 0: none, or the scheduler's
    // Replaces the exit policy, for measuring: the loop after which generated token i is chosen, as
    // GenerationEvent::exits reports them. Tokens beyond its end run all loops, and so does the first one,
    // whatever it says.
    std::vector<int32_t> exits;
    // Chooses the tokens, for several requests at a time that one thread runs; null: a new sampler for
    // `sampling`.
    std::shared_ptr<Sampler> sampler;
    std::shared_ptr<const Grammar> grammar;  // of `format`; null: the generator compiles it
    std::vector<int32_t> shown;              // special tokens that are part of the text
    int32_t adapter = -1;                    // of the engine (Engine::add_adapter()); -1: none
    std::optional<uint64_t> seed;            // in place of `sampling.seed`, which has 32 bits
};

// The news since the previous event.
struct GenerationEvent {
    // Text that is final: whole UTF-8 characters, and nothing that may still become a stop text. May be
    // empty.
    std::string text;
    std::vector<int32_t> tokens;
    std::vector<TokenLogprob> logprobs;  // of `tokens`, where asked for
    std::vector<int32_t> exits;          // the loops that `tokens` were chosen after, from 1
    // Where asked for, before or with the first generated token: of the prompt's second token, the third, ...
    std::vector<TokenLogprob> prompt;
    // In the first event of a server's: tokens of the prompt that were known, and when it got a slot.
    int64_t known_prompt = 0;
    std::optional<std::chrono::steady_clock::time_point> started;
    std::optional<FinishReason> finished;  // in the last event
    std::string stop_text;                 // that ended the generation
    std::optional<int32_t> end_token;      // that ended it
    std::string error;                     // why, for FinishReason::error
    bool format_error = false;             // the request's format is the reason
};

// Adds an event to the one before it.
void append(GenerationEvent& to, GenerationEvent&& from);

}  // namespace refold
