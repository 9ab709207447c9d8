// Turns a client's request into requests for the scheduler, and the scheduler's events into what the client
// is sent. How that is written is the interface's: openai_answer.h and others.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "generation/request.h"
#include "grammar/grammar.h"
#include "serve/api_error.h"
#include "serve/generation_fields.h"

namespace refold {

// Bounds of prompts.
struct PromptLimits {
    int64_t context = 0;  // most tokens of a sequence
    int64_t n_vocab = 0;
    size_t longest_token = 0;  // bytes

    // Throws ApiError (400) that names `field`, for a text of so many bytes that no tokens of the vocabulary
    // could make it fit.
    void check_length(size_t bytes, const char* field) const;
    // Throws ApiError (400): the prompt has `what`, which is too much.
    [[noreturn]] void too_long(const std::string& what, const char* field) const;
};

struct Usage {
    int64_t prompt_tokens = 0, completion_tokens = 0;
    int64_t cached_tokens = 0;  // of the prompts: what the KV cache had already
    std::optional<std::chrono::steady_clock::time_point> first_token = {};  // when it came
};

// 400: what is asked of the output cannot be kept.
ApiError invalid_format(const std::exception& error, const OutputFormat& format);

// "stop" or "length". Throws ApiError for generations that ended otherwise.
const char* finish_name(const GenerationEvent& last);

// A new id, as "chatcmpl-...".
std::string new_id(const char* prefix);
// A new id of a call; `brief`: of nine letters and digits.
std::string new_call_id(bool brief);

int64_t seconds_since_1970();

class ApiAnswer {
public:
    virtual ~ApiAnswer() = default;

    // The body of an answer at once; `all` has the events of every choice in one. Throws ApiError for a
    // choice that could not be finished.
    virtual nlohmann::ordered_json body(const std::vector<GenerationEvent>& all) = 0;

    // A stream: what is written at its beginning, for the news of a choice, and at its end. Empty: nothing.
    // part() throws as body() does.
    virtual std::string begin() { return ""; }
    virtual std::string part(size_t choice, const GenerationEvent& event) = 0;
    virtual std::string end() = 0;
    // What is written last in a stream that breaks off.
    virtual std::string broken(const ApiError& error) = 0;
    // What is written while there is nothing to say, so that proxies do not close the connection.
    virtual std::string still_there() { return ": waiting\n\n"; }
    virtual const char* stream_type() const { return "text/event-stream"; }

    size_t choices() const { return prompts_.size() * n_; }
    // The scheduler's request for a choice, made when its turn comes: a request may have many choices, which
    // share their sampler.
    GenerationRequest request(size_t choice) const;
    // Counts an event of a choice.
    void count(size_t choice, const GenerationEvent& event);
    // Compiles the request's format for all choices. Throws ApiError (400) for one that cannot be kept.
    void compile_format(GrammarCompiler& grammars);

    const bool stream;
    Usage usage;

protected:
    struct Prompt {
        std::vector<int32_t> tokens;
        int64_t max_tokens = 0;
    };

    // Choices that are generated for each prompt.
    size_t choices_of_prompt() const { return n_; }
    // Throws ApiError (400) for a token that is not in the vocabulary.
    ApiAnswer(const ApiRequest& request, const PromptLimits& limits);
    // `field`: of the request, with the prompt. Throws ApiError (400) for one that does not fit.
    void add_prompt(std::vector<int32_t> tokens, int64_t max_tokens, const char* field);
    // What the answers look like, in place of the request's format; `marks` are written as text.
    void set_structure(AnswerStructure structure);
    const Prompt& prompt_of(size_t choice) const { return prompts_[choice / n_]; }

    GenerationRequest common_;  // all but the prompt, its most tokens and the seed

private:
    const size_t n_;
    const int64_t context_;
    const std::optional<uint64_t> seed_;
    const uint64_t any_seed_;
    std::vector<Prompt> prompts_;
    AnswerStructure structure_;
};

}  // namespace refold
