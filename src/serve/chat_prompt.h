// Writes conversations by the model's own chat template, rendered as transformers renders it.
#pragma once

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja.h"
#include "text/tokenizer.h"

namespace refold {

class ChatPrompt {
public:
    explicit ChatPrompt(const Tokenizer& tokenizer);

    // Why the template cannot be used; empty when it can.
    const std::string& problem() const { return problem_; }
    // The conversation up to where the assistant's answer begins. Any thread. Throws Error(input) for
    // messages that the template refuses, Error(unsupported) when problem() is not empty.
    std::vector<int32_t> tokens(const nlohmann::ordered_json& messages) const;

private:
    const Tokenizer& tokenizer_;
    std::optional<JinjaTemplate> template_;
    nlohmann::ordered_json variables_;
    std::string problem_;
    mutable std::mutex mutex_;
};

}  // namespace refold
