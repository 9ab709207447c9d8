#include "vocab/decoder.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>

#include "core/error.h"
#include "core/text.h"
#include "vocab/growth.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    std::string out;
    size_t at = 0;
    for (size_t hit; (hit = text.find(from, at)) != std::string::npos; at = hit + from.size()) {
        out.append(text, at, hit - at).append(to);
    }
    text = out.append(text, at);
}

std::string concatenate(const std::vector<std::string>& tokens) {
    std::string out;
    for (const auto& token : tokens) out += token;
    return out;
}

// Replaces every run of byte tokens by its text, or by one U+FFFD per byte when it is not UTF-8.
std::vector<std::string> fall_back_to_bytes(const std::vector<std::string>& tokens) {
    std::vector<std::string> out;
    std::string run;
    const auto finish = [&] {
        if (run.empty()) return;
        if (find_invalid_utf8(run) == std::string::npos) {
            out.push_back(run);
        } else {
            for (size_t i = 0; i < run.size(); ++i) out.emplace_back("\uFFFD");
        }
        run.clear();
    };
    for (const auto& token : tokens) {
        if (const int byte = byte_of_token(token); byte >= 0) {
            run += static_cast<char>(byte);
        } else {
            finish();
            out.push_back(token);
        }
    }
    finish();
    return out;
}

std::vector<std::string> byte_level(const std::vector<std::string>& tokens) {
    std::string bytes;
    for (const auto& token : tokens) bytes += byte_level_bytes(token);
    return {replace_invalid_utf8(bytes)};
}

std::string strip(const std::string& token, const std::string& content, size_t start, size_t stop) {
    std::string_view rest = token;
    for (size_t i = 0; i < start && rest.starts_with(content); ++i) rest.remove_prefix(content.size());
    for (size_t i = 0; i < stop && rest.ends_with(content); ++i) rest.remove_suffix(content.size());
    return std::string(rest);
}

void clean_up(std::string& text, bool of_word_piece) {
    using Rule = std::pair<const char*, const char*>;
    static constexpr std::array<Rule, 7> first{
        {{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}}};
    static constexpr std::array<Rule, 3> last{{{" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}}};
    for (const auto& [from, to] : first) replace_all(text, from, to);
    if (of_word_piece) replace_all(text, " do not", " don't");
    for (const auto& [from, to] : last) replace_all(text, from, to);
}

}  // namespace

char32_t byte_level_character(unsigned char byte) {
    static const auto table = [] {
        std::array<char32_t, 256> t{};
        char32_t next = 256;
        for (unsigned b = 0; b < 256; ++b) {
            const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
            t[b] = printable ? b : next++;
        }
        return t;
    }();
    return table[byte];
}

std::string byte_level_bytes(std::string_view token) {
    static const auto bytes = [] {
        std::map<char32_t, char> map;
        for (unsigned b = 0; b < 256; ++b) {
            map[byte_level_character(static_cast<unsigned char>(b))] = static_cast<char>(b);
        }
        return map;
    }();
    std::string out;
    for (const char32_t c : to_code_points(token)) {
        const auto it = bytes.find(c);
        if (it == bytes.end()) return std::string(token);
        out += it->second;
    }
    return out;
}

int byte_of_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (const char c : token.substr(3, 2)) {
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

std::string clean_up_spaces(std::string text) {
    clean_up(text, false);
    return text;
}

Decoder::Decoder(const JsonView& json) { add(json, 0); }

void Decoder::add(const JsonView& json, int depth) {
    const std::string type = json.at("type").string();
    if (type == "Sequence" && depth < 8) {
        const JsonView parts = json.at("decoders");
        for (size_t i = 0; i < parts.array().size(); ++i) add(parts.at(i), depth + 1);
    } else if (type == "ByteLevel") {
        steps_.emplace_back(byte_level);
    } else if (type == "ByteFallback") {
        steps_.emplace_back(fall_back_to_bytes);
    } else if (type == "Fuse") {
        steps_.emplace_back([](const Tokens& tokens) { return Tokens{concatenate(tokens)}; });
    } else if (type == "Replace" && json.at("pattern").find("String")) {
        const std::string from = json.at("pattern").at("String").string();
        const std::string to = insertion(json.at("content"));
        if (from.empty()) json.expected("a pattern that is not empty");
        steps_.emplace_back([from, to](Tokens tokens) {
            for (auto& token : tokens) replace_all(token, from, to);
            return tokens;
        });
    } else if (type == "Metaspace") {
        add_metaspace(json);
    } else if (type == "Strip") {
        add_strip(json);
    } else if (type == "WordPiece") {
        add_word_piece(json);
    } else {
        fail(ErrorCode::unsupported, "tokenizer", "{}: the decoder {} is not known", json.where(),
             json.json().dump());
    }
    check_steps(steps_.size(), json);
}

void Decoder::add_metaspace(const JsonView& json) {
    const std::string mark = json.string("replacement", "\u2581");
    const bool never =
        !json.boolean("add_prefix_space", true) || json.string("prepend_scheme", "always") == "never";
    if (to_code_points(mark).size() != 1) json.expected("a replacement of one character");
    steps_.emplace_back([mark, never](Tokens tokens) {
        for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], mark, i == 0 && !never ? "" : " ");
        return tokens;
    });
}

void Decoder::add_strip(const JsonView& json) {
    const std::string content = json.at("content").string();
    const auto start = static_cast<size_t>(json.at("start").integer(0, 1 << 20));
    const auto stop = static_cast<size_t>(json.at("stop").integer(0, 1 << 20));
    if (content.empty()) json.expected("content that is not empty");
    steps_.emplace_back([content, start, stop](Tokens tokens) {
        for (auto& token : tokens) token = strip(token, content, start, stop);
        return tokens;
    });
}

void Decoder::add_word_piece(const JsonView& json) {
    const std::string prefix = json.string("prefix", "##");
    const bool cleanup = json.boolean("cleanup", true);
    steps_.emplace_back([prefix, cleanup](Tokens tokens) {
        for (size_t i = 0; i < tokens.size(); ++i) {
            std::string& token = tokens[i];
            if (i > 0) token = token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
            if (cleanup) clean_up(token, true);
        }
        return tokens;
    });
}

std::string Decoder::operator()(std::vector<std::string> tokens) const {
    if (steps_.empty()) return join(tokens, " ");
    const auto bytes = [&] {
        return std::transform_reduce(tokens.begin(), tokens.end(), size_t{0}, std::plus(),
                                     [](const std::string& token) { return token.size(); });
    };
    const size_t longest = longest_result(bytes() + tokens.size());
    for (const auto& step : steps_) {
        tokens = step(std::move(tokens));  // which makes it at most kLongestInsertion times as long
        check_growth(bytes(), longest);
    }
    return concatenate(tokens);
}

}  // namespace refold
