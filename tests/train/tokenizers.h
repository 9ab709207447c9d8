// Tokenizers with readable tokens: one token per byte.
#pragma once

#include <string>

#include "core/error.h"
#include "train/records.h"

namespace refold {

constexpr int32_t kBos = 1000, kEos = 1001, kTurnEnd = 1002;

inline std::vector<int32_t> bytes_as_tokens(std::string_view text) {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
}

// In a rendered dialogue "<end>" is one token.
inline std::vector<int32_t> template_tokens(std::string_view text) {
    std::vector<int32_t> out;
    for (size_t at = 0; at < text.size();) {
        const bool end = text.substr(at).starts_with("<end>");
        out.push_back(end ? kTurnEnd : static_cast<unsigned char>(text[at]));
        at += end ? 5 : 1;
    }
    return out;
}

// "user: Hello<end>\nassistant: Hi<end>\n"
inline std::string plain_dialogue(std::span<const TrainTokenizer::Message> dialogue, bool answer_follows) {
    std::string out;
    for (const auto& message : dialogue) out += message.role + ": " + message.content + "<end>\n";
    return out + (answer_follows ? "assistant: " : "");
}

inline TrainTokenizer readable_tokenizer() {
    TrainTokenizer out;
    out.identity = "bytes";
    out.tokens = bytes_as_tokens;
    out.before = {kBos};
    out.after = {kEos};
    out.dialogue = plain_dialogue;
    out.template_tokens = template_tokens;
    return out;
}

inline std::string as_text(std::span<const int32_t> tokens) {
    std::string out;
    for (const int32_t token : tokens) {
        if (token == kBos)
            out += "^";
        else if (token == kEos)
            out += "$";
        else if (token == kTurnEnd)
            out += "|";
        else
            out += static_cast<char>(token);
    }
    return out;
}

// The document's text with dots for tokens that are not scored.
inline std::string scored_text(const TrainDocument& document) {
    std::string out = as_text(document.tokens);
    for (size_t i = 0; i < out.size(); ++i) {
        if (document.scored[i] == 0) out[i] = '.';
    }
    return out;
}

}  // namespace refold
