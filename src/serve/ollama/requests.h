// The bodies of /api/chat and /api/generate.
#pragma once

#include <string>
#include <string_view>

#include "serve/conversation/conversation.h"
#include "serve/ollama/fields.h"

namespace refold {

struct OllamaChatRequest : OllamaOptions, Conversation {};

struct OllamaGenerateRequest : OllamaOptions {
    std::string prompt, system;
    std::string suffix;                // what follows the answer
    bool raw = false;                  // the prompt as it is, without a template
    nlohmann::ordered_json variables;  // of the template
};

// Throw ApiError (400) that names the field and what is wrong.
OllamaChatRequest parse_ollama_chat(std::string_view body);
OllamaGenerateRequest parse_ollama_generate(std::string_view body);

}  // namespace refold
