// Turns a client's request into requests for the scheduler, and the scheduler's events into the choices of
// the answer.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "serve/api_request.h"
#include "serve/api_response.h"
#include "serve/chat_prompt.h"
#include "serve/scheduler.h"

namespace refold {

// Bounds of prompts.
struct PromptLimits {
    int64_t context = 0;  // most tokens of a sequence
    int64_t n_vocab = 0;
    size_t longest_token = 0;  // bytes
};

class ApiAnswer {
public:
    virtual ~ApiAnswer() = default;
    // A choice as JSON: the next part of it, for a stream, or all of it, where `event` is all of its events
    // in one. Throws ApiError for a choice that could not be finished.
    virtual nlohmann::ordered_json choice(size_t index, const GenerationEvent& event) = 0;

    size_t choices() const { return prompts_.size() * n_; }
    // The scheduler's request for a choice, made when its turn comes: a request may have many choices, which
    // share their sampler.
    GenerationRequest request(size_t choice) const;
    // Compiles the request's format for all choices. Throws ApiError (400) for one that cannot be kept.
    void compile_format(GrammarCompiler& grammars);

    ResponseHead head;
    Usage usage;  // of the prompts
    bool stream = false, include_usage = false;

protected:
    struct Prompt {
        std::vector<int32_t> tokens;
        int64_t max_tokens = 0;
    };

    // Throws ApiError (400) for a bias of a token that is not in the vocabulary.
    ApiAnswer(const ApiRequest& request, const PromptLimits& limits);
    // Throws ApiError (400) for a prompt that does not fit.
    void add_prompt(std::vector<int32_t> tokens, int64_t max_tokens);
    const Prompt& prompt_of(size_t choice) const { return prompts_[choice / n_]; }

    GenerationRequest common_;  // all but the prompt, its most tokens and the seed

private:
    const size_t n_;
    const int64_t context_;
    const std::optional<uint64_t> seed_;
    const uint64_t any_seed_;
    std::vector<Prompt> prompts_;
};

// Throw ApiError (400) for prompts that do not fit. Texts that can have no few enough tokens are refused
// before they are cut into tokens. `check` is called between the steps of long work and may throw.
std::unique_ptr<ApiAnswer> make_answer(const CompletionRequest& request, const Tokenizer& tokenizer,
                                       const PromptLimits& limits, const std::string& model,
                                       const std::function<void()>& check);
std::unique_ptr<ApiAnswer> make_answer(const ChatRequest& request, const Tokenizer& tokenizer,
                                       const ChatPrompt& prompt, const PromptLimits& limits,
                                       const std::string& model, const std::function<void()>& check);

}  // namespace refold
