// Writes conversations by the model's own chat template, rendered as transformers renders it.
#pragma once

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "serve/conversation/answer_form.h"
#include "text/jinja.h"
#include "text/tokenizer.h"

namespace refold {

struct ChatInput {
    nlohmann::ordered_json messages;   // Conversation::messages
    nlohmann::ordered_json tools;      // [{"type": "function", ...}]; empty: none
    nlohmann::ordered_json variables;  // more of the template's
};

class ChatPrompt {
public:
    // `source`: a template in place of the model's own; empty: that one. Throws Error(input) for one that is
    // no valid template.
    explicit ChatPrompt(const Tokenizer& tokenizer, const std::string& source = "");

    // Why the template cannot be used; empty when it can.
    const std::string& problem() const { return problem_; }
    // Jinja; empty when the model has none.
    const std::string& source() const { return source_; }
    const AnswerForm& form() const { return form_; }
    // The special tokens that are marks of the form: they are part of an answer's text.
    const std::vector<int32_t>& marks() const { return marks_; }
    // Whether the template has a variable of that name.
    bool mentions(const std::string& variable) const { return has_word(source_, variable); }
    // The conversation up to where the assistant's answer begins or, when the last message is the
    // assistant's, up to the end of what it says. Any thread; `check` is called while others use the
    // template, and may throw. Throws Error(input) for messages that the template refuses, Error(unsupported)
    // when problem() is not empty.
    std::string text(ChatInput input, const std::function<void()>& check) const;

private:
    std::optional<JinjaTemplate> template_;
    nlohmann::ordered_json variables_;
    std::string problem_, source_;
    AnswerForm form_;
    std::vector<int32_t> marks_;
    mutable std::timed_mutex mutex_;
};

}  // namespace refold
