#include "serve/chat_prompt.h"

#include "core/error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    if (!tokenizer.has_chat_template()) {
        problem_ = "the model has no chat template - use /v1/completions";
        return;
    }
    const auto text = [&](std::optional<int32_t> token) {
        return token ? tokenizer.piece(*token, true) : "";
    };
    variables_ = {{"bos_token", text(tokenizer.bos())},
                  {"eos_token", text(tokenizer.eos())},
                  {"add_generation_prompt", true}};
    try {
        template_.emplace(tokenizer.chat_template(), JinjaOptions{.keep_whitespace = false});
    } catch (const Error& error) {
        problem_ = std::string("the model's chat template cannot be used: ") + error.what();
    }
}

std::vector<int32_t> ChatPrompt::tokens(const Json& messages) const {
    if (!template_) fail(ErrorCode::unsupported, "chat", "{}", problem_);
    Json variables = variables_;
    variables["messages"] = messages;
    std::string text;
    {
        const std::lock_guard lock(mutex_);
        text = template_->render(variables);
    }
    // The template writes BOS.
    return tokenizer_.encode(text, false, true);
}

}  // namespace refold
