#include "serve/ollama/answer.h"

#include "serve/fill_in_middle.h"
#include "serve/logprobs_json.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

// What is new in an answer.
struct News {
    std::string content, thinking;
    Json calls = Json::array();
    Json logprobs;
};

// How an interface writes them.
using Write = void (*)(const News& news, Json& out);

void write_chat(const News& news, Json& out) {
    Json& message = out["message"] = {{"role", "assistant"}, {"content", news.content}};
    if (!news.thinking.empty()) message["thinking"] = news.thinking;
    if (!news.calls.empty()) message["tool_calls"] = news.calls;
}

void write_generate(const News& news, Json& out) {
    out["response"] = news.content;
    if (!news.thinking.empty()) out["thinking"] = news.thinking;
}

Json head(const std::string& model) {
    return {{"model", model}, {"created_at", utc_time(std::chrono::system_clock::now())}};
}

Json loaded(const ModelInfo& info, Write write) {
    Json out = head(info.name);
    write({}, out);
    out["done"] = true;
    out["done_reason"] = "load";
    return out;
}

int64_t most_tokens(const OllamaOptions& options, const PromptLimits& limits, size_t prompt) {
    const int64_t most = options.max_tokens.value_or(limits.context);
    if (!options.context) return most;
    const int64_t left = *options.context - static_cast<int64_t>(prompt);
    if (left < std::min<int64_t>(most, 1))
        throw ApiError(400,
                       fmt::format("the prompt has {} tokens, 'num_ctx' allows {}, generated ones included",
                                   prompt, *options.context),
                       "options.num_ctx", "context_length_exceeded");
    return std::min(most, left);
}

class OllamaAnswer : public ApiAnswer {
public:
    // `turn`: of the model; a raw prompt has neither parts nor a structure.
    OllamaAnswer(const OllamaOptions& options, const ServedModel& model, Turn turn, const char* field,
                 Write write)
        : ApiAnswer(options, model.limits),
          tokenizer_(model.tokenizer),
          model_(model.info.name),
          write_(write),
          logprobs_(options.options.logprobs >= 0),
          parser_(turn.parts) {
        const int64_t most = most_tokens(options, model.limits, turn.prompt.size());
        add_prompt(std::move(turn.prompt), most, field);
        set_structure(std::move(turn.structure));
    }

    Json body(const std::vector<GenerationEvent>& all) override {
        const News whole = news(all.front());
        return last(whole);
    }

    std::string part(size_t, const GenerationEvent& event) override {
        const News more = news(event);
        const bool any = !more.content.empty() || !more.thinking.empty() || !more.calls.empty() ||
                         !more.logprobs.is_null();
        return any ? line(more) : "";
    }
    std::string end() override { return dump(last({})) + "\n"; }
    std::string broken(const ApiError& error) override { return ollama_error_body(error); }
    std::string still_there() override { return line({}); }
    const char* stream_type() const override { return "application/x-ndjson"; }

private:
    News news(const GenerationEvent& event) {
        if (event.finished) done_reason_ = finish_name(event);
        const std::vector<AnswerPart> parts = parser_.parts(event);
        News out;
        for (const AnswerPart& part : parts) {
            switch (part.kind) {
                case Kind::reasoning: out.thinking += part.text; break;
                case Kind::content: out.content += part.text; break;
                case Kind::call:
                    end_call(out);
                    call_ = part.text;
                    break;
                case Kind::arguments: arguments_ += part.text; break;
            }
        }
        if (event.finished) end_call(out);
        if (logprobs_ && !event.logprobs.empty())
            out.logprobs = chat_logprobs(tokenizer_, event.logprobs)["content"];
        return out;
    }

    // Calls are told when they are complete.
    void end_call(News& out) {
        if (call_.empty()) return;
        Json arguments = Json::parse(arguments_, nullptr, false);
        if (arguments.is_discarded()) arguments = Json::object();  // the answer ends within them
        out.calls.push_back({{"function", {{"name", call_}, {"arguments", std::move(arguments)}}}});
        call_.clear();
        arguments_.clear();
    }

    Json written(const News& news) const {
        Json out = head(model_);
        write_(news, out);
        if (!news.logprobs.is_null()) out["logprobs"] = news.logprobs;
        return out;
    }

    std::string line(const News& news) const {
        Json out = written(news);
        out["done"] = false;
        return dump(out) + "\n";
    }

    Json last(const News& news) const {
        Json out = written(news);
        const int64_t total = since_arrival();
        const int64_t first = usage.first_token ? since_arrival(*usage.first_token) : total;
        out["done"] = true;
        out["done_reason"] = done_reason_;
        out["total_duration"] = total;
        out["load_duration"] = 0;
        out["prompt_eval_count"] = usage.prompt_tokens;
        out["prompt_eval_duration"] = first;
        out["eval_count"] = usage.completion_tokens;
        out["eval_duration"] = total - first;
        return out;
    }

    const Tokenizer& tokenizer_;
    const std::string model_;
    const Write write_;
    const bool logprobs_;
    AnswerParser parser_;
    std::string done_reason_, call_, arguments_;
};

}  // namespace

std::unique_ptr<ApiAnswer> make_answer(const OllamaChatRequest& request, const ServedModel& model,
                                       const std::function<void()>& check) {
    return std::make_unique<OllamaAnswer>(
        request, model, make_turn(request, request.options.format, "messages", model, check), "messages",
        write_chat);
}

std::unique_ptr<ApiAnswer> make_answer(const OllamaGenerateRequest& request, const ServedModel& model,
                                       const std::function<void()>& check) {
    Turn turn;
    // A model without a template gets the prompt as it is, as with Ollama.
    if (!request.suffix.empty()) {
        model.limits.check_length(request.prompt.size() + request.suffix.size(), "prompt");
        turn.prompt = fill_prompt(needed_fill_tokens(model.tokenizer), model.tokenizer,
                                  model.tokenizer.encode(request.prompt, true, true), request.suffix);
    } else if (request.raw || (!model.tokenizer.has_chat_template() && request.system.empty())) {
        model.limits.check_length(request.prompt.size(), "prompt");
        turn.prompt = model.tokenizer.encode(request.prompt, true, true);
    } else {
        Conversation conversation;
        conversation.variables = request.variables;
        if (!request.system.empty())
            conversation.messages.push_back({{"role", "system"}, {"content", request.system}});
        conversation.messages.push_back({{"role", "user"}, {"content", request.prompt}});
        turn = make_turn(conversation, request.options.format, "prompt", model, check);
    }
    return std::make_unique<OllamaAnswer>(request, model, std::move(turn), "prompt", write_generate);
}

Json loaded_chat(const ModelInfo& info) { return loaded(info, write_chat); }
Json loaded_generate(const ModelInfo& info) { return loaded(info, write_generate); }

}  // namespace refold
