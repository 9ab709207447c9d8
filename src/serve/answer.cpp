#include "serve/answer.h"

#include <algorithm>
#include <random>

#include "core/error.h"
#include "serve/api_error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

Json finish_json(const GenerationEvent& event) { return event.finished ? Json(finish_name(event)) : Json(); }

// The scheduler's request for a choice of `prompt`.
GenerationRequest generation(const ApiRequest& request, std::vector<int32_t> prompt, int64_t max_tokens,
                             const PromptLimits& limits) {
    const auto length = static_cast<int64_t>(prompt.size());
    if (length == 0) throw ApiError(400, "the prompt is empty", "prompt", "empty_prompt");
    if (length + std::min<int64_t>(max_tokens, 1) > limits.context) {
        throw ApiError(400,
                       fmt::format("the prompt has {} tokens, the context holds {}, generated ones included",
                                   length, limits.context),
                       "", "context_length_exceeded");
    }
    GenerationRequest out;
    static_cast<GenerationOptions&>(out) = request.options;
    out.prompt = std::move(prompt);
    out.max_tokens = std::min(max_tokens, limits.context - length);
    out.sampling.seed = request.seed ? *request.seed : std::random_device{}();
    return out;
}

// Adds the request `n` times, with different seeds.
void add_choices(std::vector<GenerationRequest>& all, GenerationRequest request, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        all.push_back(request);
        ++request.sampling.seed;
    }
}

class CompletionAnswer : public Answer {
public:
    CompletionAnswer(const CompletionRequest& request, const Tokenizer& tokenizer, const PromptLimits& limits)
        : echo_(request.echo), logprobs_(request.options.logprobs >= 0) {
        for (const ApiPrompt& given : request.prompts) {
            Prompt prompt;
            std::vector<int32_t> tokens;
            if (const auto* text = std::get_if<std::string>(&given)) {
                tokens = tokenizer.encode(*text, true, true);
                prompt.text = *text;
                const bool bos = tokenizer.adds_bos() && !tokens.empty() && tokens[0] == tokenizer.bos();
                prompt.added = bos && !text->starts_with(tokenizer.piece(tokens[0], true)) ? 1 : 0;
            } else {
                tokens = std::get<std::vector<int32_t>>(given);
                for (const int32_t id : tokens) {
                    if (id >= limits.n_vocab)
                        throw ApiError(400,
                                       fmt::format("'prompt': got the token id {}, the vocabulary has {}", id,
                                                   limits.n_vocab),
                                       "prompt");
                }
                if (echo_) prompt.text = tokenizer.decode(tokens, true);
            }
            usage.prompt_tokens += static_cast<int64_t>(tokens.size());
            GenerationRequest wanted =
                generation(request, std::move(tokens), request.max_tokens.value_or(16), limits);
            wanted.prompt_logprobs = echo_ && logprobs_;
            if (wanted.prompt_logprobs) prompt.tokens = wanted.prompt;
            // Clients that score a prompt in this way expect one generated token after it, whatever it is.
            if (wanted.prompt_logprobs && wanted.max_tokens == 1) wanted.ignore_eos = true;
            add_choices(requests, std::move(wanted), request.n);
            for (int64_t i = 0; i < request.n; ++i)
                choices_.push_back({prompts_.size(), false, {tokenizer, request.options.logprobs > 0}});
            prompts_.push_back(std::move(prompt));
        }
    }

    Json choice(size_t index, const GenerationEvent& event) override {
        Choice& choice = choices_[index];
        const bool first = !std::exchange(choice.begun, true);
        Prompt& prompt = prompts_[choice.prompt];
        if (first && echo_ && logprobs_)
            choice.logprobs.add_prompt(prompt.tokens, prompt.added, prompt.text, event.prompt);
        if (logprobs_) choice.logprobs.add(event.logprobs);
        return {{"text", (first && echo_ ? prompt.text : "") + event.text},
                {"index", index},
                {"logprobs", logprobs_ ? choice.logprobs.take() : Json()},
                {"finish_reason", finish_json(event)}};
    }

private:
    struct Prompt {
        std::string text;             // as it is echoed
        std::vector<int32_t> tokens;  // kept when their log probabilities are wanted
        size_t added = 0;             // leading tokens that the text does not show
    };
    struct Choice {
        size_t prompt;
        bool begun;
        LegacyLogprobs logprobs;
    };
    bool echo_, logprobs_;
    std::vector<Prompt> prompts_;
    std::vector<Choice> choices_;
};

class ChatAnswer : public Answer {
public:
    ChatAnswer(const ChatRequest& request, const Tokenizer& tokenizer, std::vector<int32_t> tokens,
               const PromptLimits& limits)
        : tokenizer_(tokenizer), logprobs_(request.options.logprobs >= 0) {
        usage.prompt_tokens = static_cast<int64_t>(tokens.size());
        add_choices(
            requests,
            generation(request, std::move(tokens), request.max_tokens.value_or(limits.context), limits),
            request.n);
        begun_.resize(requests.size());
    }

    Json choice(size_t index, const GenerationEvent& event) override {
        Json logprobs;
        if (logprobs_ && (!stream || !event.logprobs.empty()))
            logprobs = chat_logprobs(tokenizer_, event.logprobs);
        Json out = {{"index", index}};
        if (!stream) {
            out["message"] = {{"role", "assistant"}, {"content", event.text}, {"refusal", nullptr}};
        } else {
            Json delta = Json::object();
            if (!begun_[index]) delta["role"] = "assistant";
            if (!begun_[index] || !event.text.empty()) delta["content"] = event.text;
            begun_[index] = 1;
            out["delta"] = std::move(delta);
        }
        out["logprobs"] = std::move(logprobs);
        out["finish_reason"] = finish_json(event);
        return out;
    }

private:
    const Tokenizer& tokenizer_;
    bool logprobs_;
    std::vector<char> begun_;
};

std::unique_ptr<Answer> completed(std::unique_ptr<Answer> answer, const ApiRequest& request, bool chat,
                                  const std::string& model) {
    answer->head = new_response(chat, model);
    answer->stream = request.stream;
    answer->include_usage = request.include_usage;
    return answer;
}

}  // namespace

std::unique_ptr<Answer> make_answer(const CompletionRequest& request, const Tokenizer& tokenizer,
                                    const PromptLimits& limits, const std::string& model) {
    return completed(std::make_unique<CompletionAnswer>(request, tokenizer, limits), request, false, model);
}

std::unique_ptr<Answer> make_answer(const ChatRequest& request, const Tokenizer& tokenizer,
                                    const ChatPrompt& prompt, const PromptLimits& limits,
                                    const std::string& model) {
    std::vector<int32_t> tokens;
    try {
        tokens = prompt.tokens(request.messages);
    } catch (const Error& error) {
        throw ApiError(400, error.what(), "messages");
    }
    return completed(std::make_unique<ChatAnswer>(request, tokenizer, std::move(tokens), limits), request,
                     true, model);
}

}  // namespace refold
