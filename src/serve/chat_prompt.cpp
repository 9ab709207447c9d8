#include "serve/chat_prompt.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// Stands at the end of an answer that is to be continued: what a template writes after it closes the answer.
constexpr const char* kEnd = "[refold: the answer goes on here]";

std::vector<int32_t> special_tokens(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts) {
    std::vector<int32_t> out;
    for (int32_t token = 0; token < tokenizer.size() && !texts.empty(); ++token) {
        if (std::ranges::find(texts, tokenizer.piece(token, true)) != texts.end() &&
            tokenizer.piece(token, false).empty())
            out.push_back(token);
    }
    return out;
}

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer, const std::string& source) : source_(source) {
    if (source.empty()) {
        if (!tokenizer.has_chat_template()) {
            problem_ = "the model has no chat template - use /v1/completions";
            return;
        }
        source_ = tokenizer.chat_template();
    }
    const auto text = [&](std::optional<int32_t> token) {
        return token ? tokenizer.piece(*token, true) : "";
    };
    variables_ = {{"bos_token", text(tokenizer.bos())}, {"eos_token", text(tokenizer.eos())}};
    try {
        template_.emplace(source_, JinjaOptions{.keep_whitespace = false});
    } catch (const Error& error) {
        if (!source.empty()) throw;
        problem_ = std::string("the model's chat template cannot be used: ") + error.what();
        return;
    }
    form_ = answer_form(source_);
    marks_ = special_tokens(tokenizer, marks_of(form_));
}

std::string ChatPrompt::text(ChatInput input, const std::function<void()>& check) const {
    if (!template_) fail(ErrorCode::unsupported, "chat", "{}", problem_);
    Json& last = input.messages.back();
    const bool goes_on = last["role"] == "assistant";
    if (goes_on) last["content"].get_ref<std::string&>() += kEnd;
    Json variables = std::move(input.variables);
    variables.update(variables_);
    variables["add_generation_prompt"] = !goes_on;
    variables["messages"] = std::move(input.messages);
    if (!input.tools.empty()) variables["tools"] = std::move(input.tools);
    std::string text;
    {
        std::unique_lock lock(mutex_, std::defer_lock);
        while (!lock.try_lock_for(std::chrono::milliseconds(50))) check();
        check();
        text = template_->render(variables);
    }
    if (!goes_on) return text;
    const size_t end = text.rfind(kEnd);
    if (end == std::string::npos) {
        fail(ErrorCode::unsupported, "chat",
             "the model's chat template does not write a last message of the assistant as it is - end with "
             "another role");
    }
    text.resize(end);
    return text;
}

}  // namespace refold
