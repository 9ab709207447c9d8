#include "vocab/added_tokens.h"

#include <algorithm>
#include <functional>

#include "vocab/unicode.h"

namespace refold {
namespace {

bool ends_with_word(std::string_view text) {
    size_t start = text.size();
    while (start > 0 && (text[--start] & 0xC0) == 0x80) {
    }
    return !text.empty() && is_word_character(to_code_points(text.substr(start)).back());
}

bool starts_with_word(std::string_view text) {
    return !text.empty() && is_word_character(to_code_points(text.substr(0, 4)).front());
}

// Where the white space at the end of `text` starts.
size_t trailing_space(std::string_view text) {
    size_t end = text.size();
    while (end > 0) {
        size_t start = end - 1;
        while (start > 0 && (text[start] & 0xC0) == 0x80) --start;
        if (!is_white_space(to_code_points(text.substr(start, end - start)).front())) break;
        end = start;
    }
    return end;
}

// Length of the white space at the start of `text`.
size_t leading_space(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        const size_t size = code_point_size(text, at);
        if (!is_white_space(to_code_points(text.substr(at, size)).front())) break;
        at += size;
    }
    return at;
}

}  // namespace

AddedToken read_added_token(const JsonView& json, int32_t id) {
    AddedToken token;
    token.id = id;
    token.content = json.at("content").string();
    token.special = json.boolean("special", false);
    token.single_word = json.boolean("single_word", false);
    token.lstrip = json.boolean("lstrip", false);
    token.rstrip = json.boolean("rstrip", false);
    token.normalized = json.boolean("normalized", !token.special);
    return token;
}

Json to_json(const AddedToken& token) {
    return {{"id", token.id},          {"content", token.content}, {"single_word", token.single_word},
            {"lstrip", token.lstrip},  {"rstrip", token.rstrip},   {"normalized", token.normalized},
            {"special", token.special}};
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer)
    : tokens_(std::move(tokens)) {
    // Of equal contents the first token counts, and ByteTrie finds the last.
    std::vector<std::string> raw, normalized;
    std::vector<size_t> of_raw, of_normalized;
    for (size_t i = tokens_.size(); i-- > 0;) {
        const AddedToken& token = tokens_[i];
        (token.normalized ? normalized : raw)
            .push_back(token.normalized ? normalizer(token.content) : token.content);
        (token.normalized ? of_normalized : of_raw).push_back(i);
    }
    for (size_t i = 0; i < tokens_.size(); ++i) by_id_[tokens_[i].id] = i;
    raw_ = Patterns(std::move(of_raw), raw);
    normalized_ = Patterns(std::move(of_normalized), normalized);
}

const AddedToken* AddedTokens::find(int32_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

void AddedTokens::split(const Patterns& patterns, const TextPart& part, bool parse_special,
                        std::vector<TextPart>& out) const {
    const std::string_view text = part.text;
    size_t done = 0;
    const auto add_text = [&](size_t begin, size_t end) {
        if (begin < end)
            out.push_back({-1, std::string(text.substr(begin, end - begin)), part.at_start && begin == 0});
    };
    for (size_t at = 0; at < text.size();) {
        size_t found = 0, size = 0;
        patterns.trie.prefixes(text.substr(at), [&](int32_t index, size_t length) {
            found = static_cast<size_t>(index);
            size = length;
        });
        if (size == 0) {
            ++at;
            continue;
        }
        const AddedToken& token = tokens_[patterns.tokens[found]];
        size_t begin = at, end = at + size;
        at = end;
        if (token.special && !parse_special) continue;
        if (token.single_word &&
            (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
            continue;
        }
        if (token.lstrip) begin = trailing_space(text.substr(0, begin));
        begin = std::max(begin, done);
        if (token.rstrip) end += leading_space(text.substr(end));
        add_text(done, begin);
        out.push_back({token.id, {}, false});
        done = end;
    }
    add_text(done, text.size());
}

std::vector<TextPart> AddedTokens::split(const std::string& text, const Normalizer& normalizer,
                                         bool parse_special) const {
    std::vector<TextPart> raw, out;
    split(raw_, {-1, text, true}, parse_special, raw);
    for (TextPart& part : raw) {
        if (part.token >= 0) {
            out.push_back(std::move(part));
            continue;
        }
        part.text = normalizer(std::move(part.text));
        split(normalized_, part, parse_special, out);
    }
    return out;
}

}  // namespace refold
