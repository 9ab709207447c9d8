#include "serve/messages/messages_answer.h"

#include "core/json_number.h"
#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

std::string event(const char* type, const Json& data) {
    Json out = {{"type", type}};
    out.update(data);
    return server_sent(out, type);
}

// A block as it begins.
Json empty_block(const AnswerPart& part) {
    switch (part.kind) {
        case Kind::reasoning: return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
        case Kind::content: return {{"type", "text"}, {"text", ""}};
        default: break;
    }
    return {{"type", "tool_use"},
            {"id", part.id.empty() ? new_id("toolu") : part.id},
            {"name", part.text},
            {"input", Json::object()}};
}

class MessagesAnswer : public ApiAnswer {
public:
    MessagesAnswer(const MessagesRequest& request, const ServedModel& model, Turn turn)
        : ApiAnswer(request, model.limits), id_(new_id("msg")), model_(model.info.name), parser_(turn.parts) {
        add_prompt(std::move(turn.prompt), *request.max_tokens, "messages");
        set_structure(std::move(turn.structure));
    }

    Json body(const std::vector<GenerationEvent>& all) override {
        Json blocks = Json::array();
        std::string arguments;
        const auto end_call = [&] {
            if (arguments.empty()) return;
            Json input = parse_exact(arguments);
            if (input.is_object()) blocks.back()["input"] = std::move(input);  // else it broke off
            arguments.clear();
        };
        Kind latest{};
        for (const AnswerPart& part : parser_.parts(all[0])) {
            if (part.kind == Kind::arguments) {
                arguments += part.text;
                continue;
            }
            end_call();
            if (blocks.empty() || part.kind != latest || part.kind == Kind::call)
                blocks.push_back(empty_block(part));
            latest = part.kind;
            if (part.kind == Kind::call) {
                called_ = true;
            } else {
                blocks.back()[part.kind == Kind::content ? "text" : "thinking"].get_ref<std::string&>() +=
                    part.text;
            }
        }
        end_call();
        Json out = message(std::move(blocks));
        out.update(end_of(all[0]));
        out["usage"] = usage_json();
        return out;
    }

    std::string begin() override {
        return event("message_start", {{"message", message(Json::array())}}) + still_there();
    }

    std::string part(size_t, const GenerationEvent& given) override {
        std::string out;
        for (const AnswerPart& part : parser_.parts(given)) {
            const Kind kind = part.kind == Kind::arguments ? Kind::call : part.kind;
            if (part.kind == Kind::call || !open_ || *open_ != kind) {
                out += stop_block();
                out +=
                    event("content_block_start", {{"index", index_}, {"content_block", empty_block(part)}});
                open_ = kind;
            }
            called_ = called_ || part.kind == Kind::call;
            switch (part.kind) {
                case Kind::reasoning:
                    out += delta({{"type", "thinking_delta"}, {"thinking", part.text}});
                    break;
                case Kind::content: out += delta({{"type", "text_delta"}, {"text", part.text}}); break;
                case Kind::arguments:
                    out += delta({{"type", "input_json_delta"}, {"partial_json", part.text}});
                    break;
                case Kind::call: break;
            }
        }
        if (given.finished) {
            out += stop_block();
            end_ = end_of(given);
        }
        return out;
    }

    std::string end() override {
        return event("message_delta", {{"delta", end_}, {"usage", usage_json()}}) +
               event("message_stop", Json::object());
    }

    std::string broken(const ApiError& error) override {
        return "event: error\ndata: " + messages_error_body(error) + "\n";
    }
    std::string still_there() override { return event("ping", Json::object()); }

private:
    Json message(Json content) const {
        return {{"id", id_},
                {"type", "message"},
                {"role", "assistant"},
                {"model", model_},
                {"content", std::move(content)},
                {"stop_reason", nullptr},
                {"stop_sequence", nullptr},
                {"usage", usage_json()}};
    }

    Json usage_json() const {
        return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                {"cache_creation_input_tokens", 0},
                {"cache_read_input_tokens", usage.cached_tokens},
                {"output_tokens", usage.completion_tokens}};
    }

    Json end_of(const GenerationEvent& event) const {
        const std::string_view name = finish_name(event);
        if (!event.stop_text.empty())
            return {{"stop_reason", "stop_sequence"}, {"stop_sequence", event.stop_text}};
        const char* const reason = name == "length" ? "max_tokens" : called_ ? "tool_use" : "end_turn";
        return {{"stop_reason", reason}, {"stop_sequence", nullptr}};
    }

    std::string delta(Json of) const {
        return event("content_block_delta", {{"index", index_}, {"delta", std::move(of)}});
    }

    std::string stop_block() {
        if (!open_) return "";
        open_.reset();
        return event("content_block_stop", {{"index", index_++}});
    }

    const std::string id_, model_;
    AnswerParser parser_;
    bool called_ = false;
    // Of a stream:
    std::optional<Kind> open_;  // the block that is written
    size_t index_ = 0;
    Json end_;
};

}  // namespace

Turn messages_turn(const MessagesRequest& request, const ServedModel& model,
                   const std::function<void()>& check) {
    Conversation conversation = request;
    if (request.thinking) {
        if (model.chat.form().reasoning.end.empty())
            throw ApiError(400, "'thinking': the model does not write any that its chat template knows of",
                           "thinking", "unsupported_parameter");
        if (model.chat.mentions("enable_thinking")) conversation.variables["enable_thinking"] = true;
    }
    return make_turn(conversation, request.options.format, "messages", model, check);
}

std::unique_ptr<ApiAnswer> make_answer(const MessagesRequest& request, const ServedModel& model,
                                       const std::function<void()>& check) {
    return std::make_unique<MessagesAnswer>(request, model, messages_turn(request, model, check));
}

}  // namespace refold
