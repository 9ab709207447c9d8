// From a client's request to requests for the scheduler, and from the scheduler's events to the choices of
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

// What bounds prompts.
struct PromptLimits {
    int64_t context = 0;  // tokens of a sequence
    int64_t n_vocab = 0;
};

class Answer {
public:
    virtual ~Answer() = default;
    // The choice as it goes on with `event`, for a stream, or as it is as a whole, where `event` is all of
    // its events in one. Throws ApiError for a choice that could not be finished.
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

// Puts `more` behind `all`.
void append(GenerationEvent& all, GenerationEvent&& more);

}  // namespace refold
