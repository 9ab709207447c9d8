// Turns a client's request into requests for the scheduler, and the scheduler's events into the choices of
// the answer.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/api_request.h"
#include "serve/api_response.h"
#include "serve/chat_prompt.h"
#include "serve/scheduler.h"

namespace refold {

// Bounds of prompts.
struct PromptLimits {
    int64_t context = 0;  // most tokens of a sequence
    int64_t n_vocab = 0;
};

class Answer {
public:
    virtual ~Answer() = default;
    // A choice as JSON: the next part of it, for a stream, or all of it, where `event` is all of its events
    // in one. Throws ApiError for a choice that could not be finished.
    virtual nlohmann::ordered_json choice(size_t index, const GenerationEvent& event) = 0;

    std::vector<GenerationRequest> requests;  // one per choice
    ResponseHead head;
    Usage usage;  // of the prompts
    bool stream = false, include_usage = false;
};

// Throw ApiError (400) for prompts that do not fit.
std::unique_ptr<Answer> make_answer(const CompletionRequest& request, const Tokenizer& tokenizer,
                                    const PromptLimits& limits, const std::string& model);
std::unique_ptr<Answer> make_answer(const ChatRequest& request, const Tokenizer& tokenizer,
                                    const ChatPrompt& prompt, const PromptLimits& limits,
                                    const std::string& model);

}  // namespace refold
