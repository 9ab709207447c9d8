#include "serve/logprobs_json.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "core/text.h"
#include "serve/api_error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity.
double finite(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

int64_t characters(const std::string& text) {
    return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

// Whether a character has only begun.
static bool pending(Utf8Stream stream) { return stream.push("a") != "a"; }

int64_t TextOffsets::add(std::string_view piece) {
    int64_t offset = characters_;
    for (size_t i = 0; i < piece.size(); ++i) {
        const int64_t more = refold::characters(stream_.push(piece.substr(i, 1)));
        // Bytes of earlier tokens that this one does not complete have become characters of their own.
        if (i == 0) offset += pending(stream_) ? more : more - 1;
        characters_ += more;
    }
    return offset;
}

std::string token_text(const Tokenizer& tokenizer, int32_t token) {
    std::string piece = tokenizer.piece(token, true);
    if (find_invalid_utf8(piece) == std::string::npos) return piece;
    std::string out = "bytes:";
    for (const char c : piece) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return out;
}

Json LegacyLogprobs::empty() {
    return {{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
}

void LegacyLogprobs::add_token(int32_t token, const TokenLogprob* logprob, bool special, bool in_text) {
    out_["tokens"].push_back(token_text(tokenizer_, token));
    const int64_t offset = in_text ? text_.add(tokenizer_.piece(token, special)) : text_.characters();
    out_["text_offset"].push_back(std::max<int64_t>(0, offset));
    if (logprob == nullptr) {
        out_["token_logprobs"].push_back(nullptr);
        out_["top_logprobs"].push_back(nullptr);
        return;
    }
    out_["token_logprobs"].push_back(finite(logprob->logprob));
    if (!top_) {
        out_["top_logprobs"].push_back(nullptr);
        return;
    }
    // Of tokens with the same text the likeliest counts. The chosen token is always included.
    Json top = Json::object();
    const auto put = [&](int32_t id, double value) {
        const auto [place, fresh] = top.emplace(token_text(tokenizer_, id), finite(value));
        if (!fresh && place->get<double>() < finite(value)) *place = finite(value);
    };
    for (const auto& [id, value] : logprob->top) put(id, value);
    put(token, logprob->logprob);
    out_["top_logprobs"].push_back(std::move(top));
}

void LegacyLogprobs::add_prompt(std::span<const int32_t> tokens, size_t added, const std::string& text,
                                std::span<const TokenLogprob> logprobs) {
    // SentencePiece puts a space before the first word.
    std::string pieces;
    for (size_t i = added; i < tokens.size(); ++i) pieces += tokenizer_.piece(tokens[i], true);
    Utf8Stream whole;
    const int64_t length = characters(text);
    text_ = TextOffsets(length - characters(whole.push(pieces) + whole.finish()));
    for (size_t i = 0; i < tokens.size(); ++i) {
        const bool known = i > 0 && i - 1 < logprobs.size();
        add_token(tokens[i], known ? &logprobs[i - 1] : nullptr, true, i >= added);
    }
    text_ = TextOffsets(length);
}

void LegacyLogprobs::add(std::span<const TokenLogprob> tokens) {
    for (const TokenLogprob& token : tokens) add_token(token.token, &token, false, true);
}

Json LegacyLogprobs::take() { return std::exchange(out_, empty()); }

Json chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprob> tokens) {
    const auto entry = [&](int32_t token, double logprob) {
        const std::string piece = tokenizer.piece(token, true);
        Json bytes = Json::array();
        for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
        return Json{{"token", token_text(tokenizer, token)}, {"logprob", finite(logprob)}, {"bytes", bytes}};
    };
    Json content = Json::array();
    for (const TokenLogprob& token : tokens) {
        Json out = entry(token.token, token.logprob);
        Json top = Json::array();
        for (const auto& [id, logprob] : token.top) top.push_back(entry(id, logprob));
        out["top_logprobs"] = std::move(top);
        content.push_back(std::move(out));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
}

}  // namespace refold
