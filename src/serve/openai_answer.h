// Answers in the form of OpenAI's completions and chat completions: a list of choices.
#pragma once

#include <map>

#include "serve/answer.h"
#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "serve/served_model.h"

namespace refold {

class OpenAiAnswer : public ApiAnswer {
public:
    nlohmann::ordered_json body(const std::vector<GenerationEvent>& all) override;
    std::string part(size_t choice, const GenerationEvent& event) override;
    std::string end() override;
    std::string broken(const ApiError& error) override;

protected:
    // What is the same in all objects that answer the request.
    struct Head {
        const char *id_prefix, *object, *chunk_object;
    };

    OpenAiAnswer(const ApiRequest& request, const ServedModel& model, const Head& head);
    // A choice as JSON: the next part of it, for a stream, or all of it. Throws ApiError for a choice that
    // could not be finished.
    virtual nlohmann::ordered_json choice(size_t index, const GenerationEvent& event) = 0;
    // What a stream is sent of it, each in an event of its own.
    virtual std::vector<nlohmann::ordered_json> pieces(size_t index, const GenerationEvent& event) {
        return {choice(index, event)};
    }

private:
    nlohmann::ordered_json object(nlohmann::ordered_json choices) const;
    nlohmann::ordered_json usage_json() const;

    const Head head_;
    const std::string id_, model_;
    const int64_t created_;
    const bool include_usage_, return_exits_;
    std::map<size_t, std::vector<int32_t>> exits_;  // by choice: not sent yet
};

// Throw ApiError (400) for prompts that do not fit. Texts that can have no few enough tokens are refused
// before they are cut into tokens. `check` is called between the steps of long work and may throw.
std::unique_ptr<ApiAnswer> make_answer(const CompletionRequest& request, const ServedModel& model,
                                       const std::function<void()>& check);
std::unique_ptr<ApiAnswer> make_answer(const ChatRequest& request, const ServedModel& model,
                                       const std::function<void()>& check);

}  // namespace refold
