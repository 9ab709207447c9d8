#include "serve/fill_in_middle.h"

#include <array>

#include "serve/api_error.h"

namespace refold {

std::optional<FillTokens> fill_tokens(const Tokenizer& tokenizer) {
    constexpr std::array<std::array<const char*, 3>, 5> kMarks = {{
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen2.5, CodeGemma
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder, SmolLM2
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek-Coder
        {"▁<PRE>", "▁<SUF>", "▁<MID>"},                          // CodeLlama
    }};
    const auto token = [&](const char* text) -> std::optional<int32_t> {
        const std::vector<int32_t> tokens = tokenizer.encode(text, false, true);
        return tokens.size() == 1 ? std::optional(tokens[0]) : std::nullopt;
    };
    for (const auto& [prefix, suffix, middle] : kMarks) {
        const auto p = token(prefix), s = token(suffix), m = token(middle);
        if (p && s && m) return FillTokens{*p, *s, *m};
    }
    return std::nullopt;
}

FillTokens needed_fill_tokens(const Tokenizer& tokenizer) {
    const auto tokens = fill_tokens(tokenizer);
    if (!tokens)
        throw ApiError(
            400, "'suffix': the model's vocabulary has no tokens for filling in the middle - leave it out",
            "suffix", "unsupported_parameter");
    return *tokens;
}

std::vector<int32_t> fill_prompt(const FillTokens& tokens, const Tokenizer& tokenizer,
                                 const std::vector<int32_t>& beginning, const std::string& end) {
    std::vector<int32_t> out = beginning;
    const bool bos = tokenizer.bos() && !out.empty() && out.front() == *tokenizer.bos();
    out.insert(out.begin() + (bos ? 1 : 0), tokens.prefix);
    const std::vector<int32_t> suffix = tokenizer.encode(end, false, false);
    out.push_back(tokens.suffix);
    out.insert(out.end(), suffix.begin(), suffix.end());
    out.push_back(tokens.middle);
    return out;
}

}  // namespace refold
