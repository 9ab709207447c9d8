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
    for (size_t i = 0; i < tokens_.size(); ++i) {
        const AddedToken& token = tokens_[i];
        by_id_[token.id] = i;
        if (token.normalized) {
            add(normalized_, normalizer(token.content), i);
        } else {
            add(raw_, token.content, i);
        }
    }
}

void AddedTokens::add(Patterns& patterns, const std::string& content, size_t token) const {
    if (content.empty()) return;
    patterns.index.emplace(content, token);
    patterns.first_bytes[static_cast<unsigned char>(content.front())] = true;
    patterns.longest = std::max(patterns.longest, content.size());
}

const AddedToken* AddedTokens::find(int32_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

const std::pair<const std::string, size_t>* AddedTokens::longest_at(const Patterns& patterns,
                                                                    std::string_view text) const {
    if (!patterns.first_bytes[static_cast<unsigned char>(text.front())]) return nullptr;
    // In descending order, the prefixes of the text follow its lower bound, the longest first.
    std::string probe(text.substr(0, patterns.longest));
    while (!probe.empty()) {
        const auto it = patterns.index.lower_bound(probe);
        if (it == patterns.index.end()) return nullptr;
        if (probe.starts_with(it->first)) return &*it;
        size_t common = 0;
        while (common < it->first.size() && common < probe.size() && it->first[common] == probe[common])
            ++common;
        probe.resize(common);
    }
    return nullptr;
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
        const auto* match = longest_at(patterns, text.substr(at));
        if (match == nullptr) {
            ++at;
            continue;
        }
        const AddedToken& token = tokens_[match->second];
        size_t begin = at, end = at + match->first.size();
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
