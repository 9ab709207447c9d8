// Turns items into requests to a model by lm-evaluation-harness's rules: text of the prompt, division into
// context and continuation, tokens, and truncation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tasks/item.h"
#include "text/tokenizer.h"

namespace refold {

// Marks the place of an encoder's choice in a prompt, independent of the model's own mask token.
inline constexpr const char* kMaskMarker = "[MASK]";

struct PromptOptions {
    bool chat_template = false;  // the model's own, by Jinja
    bool multiturn = false;      // with chat_template: every example is two messages; else part of the user's
    int64_t max_length = 0;      // longest sequence of the model, in tokens
    bool encoder = false;
};

struct Request {
    size_t item = 0;  // of the task
    // In lm-eval's terms; empty continuation for generated text.
    std::string context, continuation;

    // Decoders: context and continuation, truncated on the left to max_length. The last `scored` tokens are
    // the continuation; 0: text is to be generated. Encoders: the whole sequence with the choice in place of
    // the marker.
    std::vector<int32_t> tokens;
    int64_t scored = 0;
    int64_t first_scored = 0;  // encoders: index of the choice's first token
    bool together = false;     // encoders: all scored tokens are masked at once, instead of one by one
    int64_t cut = 0;           // number of tokens cut off
};

// All requests of a task, item by item and choice by choice. Where text is generated and a metric asks for
// the likelihood of the first reference, that request follows the one for the text. Encoders fill masks
// behind the prompt (GenerationSettings::masks) in place of generating. Throws Error(input) naming an item
// without choices, prompts or a right choice, or with a continuation that has no tokens of its own or too
// many. Throws Error(usage) for outputs that need the other kind of model and when there is no room to
// generate, Error(unsupported) for a missing chat template.
std::vector<Request> make_requests(const Task& task, const Tokenizer& tokenizer,
                                   const PromptOptions& options);

}  // namespace refold
