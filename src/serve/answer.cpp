#include "serve/answer.h"

#include <algorithm>
#include <random>

#include "core/error.h"
#include "generation/options.h"
#include "generation/sampler.h"
#include "serve/api_error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

Json finish_json(const GenerationEvent& event) { return event.finished ? Json(finish_name(event)) : Json(); }

[[noreturn]] void too_long(const std::string& what, const PromptLimits& limits) {
    throw ApiError(
        400,
        fmt::format("the prompt has {}, more than the context of {} tokens can hold", what, limits.context),
        "", "context_length_exceeded");
}

// Refuses a text of so many bytes that no tokens of the vocabulary could make it fit.
void check_length(size_t bytes, const PromptLimits& limits) {
    if (bytes / std::max<size_t>(limits.longest_token, 1) > static_cast<size_t>(limits.context))
        too_long(fmt::format("{} bytes", bytes), limits);
}

uint64_t any_seed() {
    std::random_device random;
    return (uint64_t{random()} << 32) + random();
}

class CompletionAnswer : public ApiAnswer {
public:
    CompletionAnswer(const CompletionRequest& request, const Tokenizer& tokenizer, const PromptLimits& limits,
                     const std::function<void()>& check)
        : ApiAnswer(request, limits), echo_(request.echo), logprobs_(request.options.logprobs >= 0) {
        common_.prompt_logprobs = echo_ && logprobs_;
        for (const ApiPrompt& given : request.prompts) {
            check();
            EchoedPrompt prompt;
            std::vector<int32_t> tokens;
            if (const auto* text = std::get_if<std::string>(&given)) {
                check_length(text->size(), limits);
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
            add_prompt(std::move(tokens), request.max_tokens.value_or(16));
            for (int64_t i = 0; i < request.n; ++i)
                choices_.push_back({echoed_.size(), false, {tokenizer, request.options.logprobs > 0}});
            echoed_.push_back(std::move(prompt));
        }
    }

    Json choice(size_t index, const GenerationEvent& event) override {
        Choice& choice = choices_[index];
        const bool first = !std::exchange(choice.begun, true);
        const EchoedPrompt& prompt = echoed_[choice.prompt];
        if (first && echo_ && logprobs_)
            choice.logprobs.add_prompt(prompt_of(index).tokens, prompt.added, prompt.text, event.prompt);
        if (logprobs_) choice.logprobs.add(event.logprobs);
        return {{"text", (first && echo_ ? prompt.text : "") + event.text},
                {"index", index},
                {"logprobs", logprobs_ ? choice.logprobs.take() : Json()},
                {"finish_reason", finish_json(event)}};
    }

private:
    struct EchoedPrompt {
        std::string text;
        size_t added = 0;  // leading tokens that the text does not show
    };
    struct Choice {
        size_t prompt;
        bool begun;
        LegacyLogprobs logprobs;
    };
    bool echo_, logprobs_;
    std::vector<EchoedPrompt> echoed_;
    std::vector<Choice> choices_;
};

class ChatAnswer : public ApiAnswer {
public:
    ChatAnswer(const ChatRequest& request, const Tokenizer& tokenizer, std::vector<int32_t> tokens,
               const PromptLimits& limits)
        : ApiAnswer(request, limits), tokenizer_(tokenizer), logprobs_(request.options.logprobs >= 0) {
        usage.prompt_tokens = static_cast<int64_t>(tokens.size());
        add_prompt(std::move(tokens), request.max_tokens.value_or(limits.context));
        begun_.resize(choices());
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

std::unique_ptr<ApiAnswer> completed(std::unique_ptr<ApiAnswer> answer, const ApiRequest& request, bool chat,
                                     const std::string& model) {
    answer->head = new_response(chat, model);
    answer->stream = request.stream;
    answer->include_usage = request.include_usage;
    return answer;
}

// Refuses conversations that cannot fit, as a template writes all of their messages.
void check_messages(const Json& messages, const PromptLimits& limits) {
    constexpr size_t kMost = 4096;  // templates take longer the more there are
    if (messages.size() > kMost)
        throw ApiError(400, fmt::format("got {} messages, expected at most {}", messages.size(), kMost),
                       "messages");
    if (messages.size() > static_cast<size_t>(limits.context))
        too_long(fmt::format("{} messages", messages.size()), limits);
    size_t bytes = 0;
    for (const Json& message : messages) bytes += message["content"].get_ref<const std::string&>().size();
    check_length(bytes, limits);
}

}  // namespace

ApiAnswer::ApiAnswer(const ApiRequest& request, const PromptLimits& limits)
    : n_(static_cast<size_t>(request.n)),
      context_(limits.context),
      seed_(request.seed),
      any_seed_(any_seed()) {
    static_cast<GenerationOptions&>(common_) = request.options;
    try {
        check_generation(common_, limits.n_vocab);
    } catch (const Error& error) {
        throw ApiError(400, error.what());
    }
    common_.sampler = std::make_shared<Sampler>(common_.sampling);
    common_.sampling.logit_bias.clear();  // the sampler has it
}

void ApiAnswer::add_prompt(std::vector<int32_t> tokens, int64_t max_tokens) {
    const auto length = static_cast<int64_t>(tokens.size());
    if (length == 0) throw ApiError(400, "the prompt is empty", "prompt", "empty_prompt");
    if (length + std::min<int64_t>(max_tokens, 1) > context_) {
        throw ApiError(400,
                       fmt::format("the prompt has {} tokens, the context holds {}, generated ones included",
                                   length, context_),
                       "", "context_length_exceeded");
    }
    prompts_.push_back({std::move(tokens), std::min(max_tokens, context_ - length)});
}

void ApiAnswer::compile_format(GrammarCompiler& grammars) {
    try {
        common_.grammar = grammars.compile(common_.format);
    } catch (const Error& error) {
        throw ApiError(400, fmt::format("the format of the output: {}", error.what()), "response_format",
                       "invalid_format");
    }
    common_.format = {};  // the grammar has it
}

GenerationRequest ApiAnswer::request(size_t choice) const {
    const Prompt& prompt = prompt_of(choice);
    GenerationRequest out = common_;
    out.prompt = prompt.tokens;
    out.max_tokens = prompt.max_tokens;
    // Clients that score a prompt in this way expect one generated token after it, whatever it is.
    if (out.prompt_logprobs && out.max_tokens == 1) out.ignore_eos = true;
    out.seed = seed_ ? *seed_ + choice % n_ : any_seed_ + choice;
    return out;
}

std::unique_ptr<ApiAnswer> make_answer(const CompletionRequest& request, const Tokenizer& tokenizer,
                                       const PromptLimits& limits, const std::string& model,
                                       const std::function<void()>& check) {
    return completed(std::make_unique<CompletionAnswer>(request, tokenizer, limits, check), request, false,
                     model);
}

std::unique_ptr<ApiAnswer> make_answer(const ChatRequest& request, const Tokenizer& tokenizer,
                                       const ChatPrompt& prompt, const PromptLimits& limits,
                                       const std::string& model, const std::function<void()>& check) {
    check_messages(request.messages, limits);
    std::vector<int32_t> tokens;
    try {
        const std::string text = prompt.text(request.messages, check);
        check_length(text.size(), limits);
        check();
        tokens = tokenizer.encode(text, false, true);  // the template writes BOS
    } catch (const Error& error) {
        throw ApiError(400, error.what(), "messages");
    }
    return completed(std::make_unique<ChatAnswer>(request, tokenizer, std::move(tokens), limits), request,
                     true, model);
}

}  // namespace refold
