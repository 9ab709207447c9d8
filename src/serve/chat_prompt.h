// A conversation as the model's own chat template writes it, rendered as transformers does.
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

    // Empty when it can be used, else why not.
    const std::string& problem() const { return problem_; }
    // Up to where the assistant's answer begins. Throws Error(input) for what the template refuses,
    // Error(unsupported) when there is none that can be used. Any thread.
    std::vector<int32_t> tokens(const nlohmann::ordered_json& messages) const;

private:
    const Tokenizer& tokenizer_;
    std::optional<JinjaTemplate> template_;
    nlohmann::ordered_json variables_;
    std::string problem_;
    mutable std::mutex mutex_;
};

}  // namespace refold
