// Writes conversations by the model's own chat template, rendered as transformers renders it.
#pragma once

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/jinja.h"
#include "text/tokenizer.h"

namespace refold {

class ChatPrompt {
public:
    explicit ChatPrompt(const Tokenizer& tokenizer);

    // Why the template cannot be used; empty when it can.
    const std::string& problem() const { return problem_; }
    // The conversation up to where the assistant's answer begins or, when the last message is the
    // assistant's, up to the end of what it says. Any thread; `check` is called while others use the
    // template, and may throw. Throws Error(input) for messages that the template refuses, Error(unsupported)
    // when problem() is not empty.
    std::string text(nlohmann::ordered_json messages, const std::function<void()>& check) const;

private:
    std::optional<JinjaTemplate> template_;
    nlohmann::ordered_json variables_;
    std::string problem_;
    mutable std::timed_mutex mutex_;
};

}  // namespace refold
