#include "serve/conversation/turn.h"
#include "serve/logprobs_json.h"
#include "serve/openai_answer.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

class ChatAnswer : public OpenAiAnswer {
public:
    ChatAnswer(const ChatRequest& request, const ServedModel& model, Turn turn)
        : OpenAiAnswer(request, model, {"chatcmpl", "chat.completion", "chat.completion.chunk"}),
          tokenizer_(model.tokenizer),
          logprobs_(request.options.logprobs >= 0),
          short_ids_(turn.parts.calls != nullptr && turn.parts.calls->short_ids) {
        add_prompt(std::move(turn.prompt), request.max_tokens.value_or(model.limits.context), "messages");
        set_structure(std::move(turn.structure));
        for (size_t i = 0; i < choices(); ++i) choices_.push_back({AnswerParser(turn.parts)});
    }

    Json choice(size_t index, const GenerationEvent& event) override {
        std::string content, reasoning;
        Json calls = Json::array();
        for (const AnswerPart& part : parts(index, event)) {
            switch (part.kind) {
                case Kind::reasoning: reasoning += part.text; break;
                case Kind::content: content += part.text; break;
                case Kind::call: calls.push_back(begun_call(part)); break;
                case Kind::arguments:
                    calls.back()["function"]["arguments"].get_ref<std::string&>() += part.text;
            }
        }
        Json message = {{"role", "assistant"}, {"content", content}, {"refusal", nullptr}};
        if (content.empty() && !calls.empty()) message["content"] = nullptr;
        if (!reasoning.empty()) message["reasoning_content"] = reasoning;
        if (!calls.empty()) message["tool_calls"] = std::move(calls);
        return {{"index", index},
                {"message", std::move(message)},
                {"logprobs", logprobs_ ? chat_logprobs(tokenizer_, event.logprobs) : Json()},
                {"finish_reason", finish(index, event)}};
    }

    std::vector<Json> pieces(size_t index, const GenerationEvent& event) override {
        std::vector<Json> out;
        const auto add = [&](const Json& delta) {
            Json whole = Json::object();
            if (!std::exchange(choices_[index].begun, true))
                whole = {{"role", "assistant"}, {"content", delta.empty() ? Json("") : Json()}};
            whole.update(delta);
            out.push_back({{"index", index},
                           {"delta", std::move(whole)},
                           {"logprobs", nullptr},
                           {"finish_reason", nullptr}});
        };
        for (const AnswerPart& part : parts(index, event)) add(delta(choices_[index], part));
        if (out.empty() && (event.finished || !event.logprobs.empty())) add(Json::object());
        if (logprobs_ && !event.logprobs.empty())
            out.front()["logprobs"] = chat_logprobs(tokenizer_, event.logprobs);
        if (event.finished) out.back()["finish_reason"] = finish(index, event);
        return out;
    }

private:
    struct Choice {
        AnswerParser parser;
        int64_t calls = 0, told = 0;  // told: to the stream
        bool begun = false;
    };

    std::vector<AnswerPart> parts(size_t index, const GenerationEvent& event) {
        Choice& choice = choices_[index];
        std::vector<AnswerPart> out = choice.parser.parts(event);
        for (const AnswerPart& part : out) choice.calls += part.kind == Kind::call ? 1 : 0;
        return out;
    }

    Json delta(Choice& choice, const AnswerPart& part) const {
        if (part.kind == Kind::reasoning) return {{"reasoning_content", part.text}};
        if (part.kind == Kind::content) return {{"content", part.text}};
        Json call = {{"index", 0}};
        if (part.kind == Kind::call) {
            ++choice.told;
            call.update(begun_call(part));
        } else {
            call["function"] = {{"arguments", part.text}};
        }
        call["index"] = choice.told - 1;
        return {{"tool_calls", Json::array({std::move(call)})}};
    }

    Json finish(size_t index, const GenerationEvent& event) const {
        if (!event.finished) return nullptr;
        const char* const name = finish_name(event);
        // A stop text may have cut the last call.
        const bool whole = *event.finished == FinishReason::stop && event.stop_text.empty();
        return whole && choices_[index].calls > 0 ? "tool_calls" : name;
    }

    Json begun_call(const AnswerPart& part) const {
        return {{"id", part.id.empty() ? new_call_id(short_ids_) : part.id},
                {"type", "function"},
                {"function", {{"name", part.text}, {"arguments", ""}}}};
    }

    const Tokenizer& tokenizer_;
    const bool logprobs_, short_ids_;
    std::vector<Choice> choices_;
};

}  // namespace

std::unique_ptr<ApiAnswer> make_answer(const ChatRequest& request, const ServedModel& model,
                                       const std::function<void()>& check) {
    Turn turn = make_turn(request, request.options.format, "messages", model, check);
    return std::make_unique<ChatAnswer>(request, model, std::move(turn));
}

}  // namespace refold
