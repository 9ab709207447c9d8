#include "serve/conversation/turn.h"

#include <algorithm>

#include "core/error.h"
#include "serve/conversation/answer_structure.h"
#include "serve/fields.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Mode = ToolChoice::Mode;

// Refuses conversations that cannot fit, as a template writes all of their messages.
void check_messages(const Json& messages, const char* field, const PromptLimits& limits) {
    constexpr size_t kMost = 4096;  // templates take longer the more there are
    if (messages.size() > kMost)
        throw ApiError(400, fmt::format("got {} messages, expected at most {}", messages.size(), kMost),
                       field);
    if (messages.size() > static_cast<size_t>(limits.context))
        limits.too_long(fmt::format("{} messages", messages.size()), field);
    size_t bytes = 0;
    for (const Json& message : messages) bytes += message["content"].get_ref<const std::string&>().size();
    limits.check_length(bytes, field);
}

// Whether the model is told of the tools.
bool offers_tools(const Conversation& conversation) {
    return !conversation.tools.empty() && conversation.choice.mode != Mode::none;
}

void check_template(const Conversation& conversation, const char* field, const ChatPrompt& chat) {
    if (offers_tools(conversation)) {
        if (!chat.form().takes_tools)
            throw ApiError(400,
                           "'tools': the model's chat template has no place for tools - leave them out, or "
                           "serve the model with a template that has",
                           "tools", "unsupported_parameter");
        if (chat.form().tools == nullptr)
            throw ApiError(400,
                           "'tools': the model's chat template writes calls in a form that this server does "
                           "not know",
                           "tools", "unsupported_parameter");
    }
    // Results without their calls would say something else.
    const auto calls = [](const Json& message) { return message.contains("tool_calls"); };
    if (!chat.mentions("tool_calls") && !chat.form().takes_tools &&
        std::ranges::any_of(conversation.messages, calls))
        throw ApiError(400, "the messages have calls, which the model's chat template does not write", field,
                       "unsupported_parameter");
    for (const auto& [name, value] : conversation.variables.items()) {
        // What a template without reasoning does anyway.
        const bool off =
            (name == "enable_thinking" && value == false) || (name == "reasoning_effort" && value == "none");
        if (!off && !chat.mentions(name))
            throw ApiError(
                400, fmt::format("the model's chat template has no variable '{}'", name.substr(0, 60)),
                name == "reasoning_effort" ? name : "chat_template_kwargs", "unsupported_parameter");
    }
}

AnswerParts parts_of(const Conversation& conversation, const ChatPrompt& chat, const std::string& prompt) {
    using Reasoning = AnswerParts::Reasoning;
    AnswerParts out{.calls = offers_tools(conversation) ? chat.form().tools : nullptr,
                    .marks = chat.form().reasoning};
    if (out.marks.end.empty()) return out;
    const std::string_view written =
        std::string_view(prompt).substr(0, prompt.find_last_not_of(" \n\r\t") + 1);
    if (written.ends_with(out.marks.begin)) {
        out.reasoning = Reasoning::begun;
    } else if (!written.ends_with(out.marks.end) && conversation.messages.back()["role"] != "assistant") {
        out.reasoning = Reasoning::may_begin;
    }
    return out;
}

}  // namespace

std::string turn_text(const Conversation& conversation, const char* field, const ServedModel& model,
                      const std::function<void()>& check) {
    check_messages(conversation.messages, field, model.limits);
    check_template(conversation, field, model.chat);
    Json tools = Json::array();
    if (offers_tools(conversation))
        for (const Tool& tool : conversation.tools) tools.push_back(tool.for_template());
    try {
        return model.chat.text({conversation.messages, std::move(tools), conversation.variables}, check);
    } catch (const Error& error) {
        throw ApiError(400, error.what(), field);
    }
}

Turn make_turn(const Conversation& conversation, const OutputFormat& format, const char* field,
               const ServedModel& model, const std::function<void()>& check) {
    const std::string text = turn_text(conversation, field, model, check);
    model.limits.check_length(text.size(), field);
    check();
    Turn out;
    out.prompt = model.tokenizer.encode(text, false, true);  // the template writes BOS
    out.parts = parts_of(conversation, model.chat, text);
    out.parts.json = format.kind != OutputFormat::Kind::any;
    try {
        out.structure = answer_structure(out.parts, conversation.tools, conversation.choice, format);
    } catch (const Error& error) {
        throw invalid_format(error, format);
    }
    out.structure.marks = model.chat.marks();
    return out;
}

}  // namespace refold
