#include "vocab/normalizer.h"

#include <map>
#include <memory>

#include "core/error.h"
#include "vocab/base64.h"
#include "vocab/char_map.h"
#include "vocab/growth.h"
#include "vocab/regex.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

std::string replace_all(const std::string& text, const std::string& from, const std::string& to,
                        size_t longest) {
    std::string out;
    size_t at = 0;
    for (size_t hit; (hit = text.find(from, at)) != std::string::npos; at = hit + from.size()) {
        out.append(text, at, hit - at).append(to);
        check_growth(out.size(), longest);
    }
    return out.append(text, at);
}

std::string replace_matches(const std::string& text, const Regex& pattern, const std::string& to,
                            size_t longest) {
    const std::u32string points = to_code_points(text);
    Regex::Search search(pattern, points);
    std::string out;
    size_t done = 0;
    const auto copy = [&](size_t end) {
        for (; done < end; ++done) append_utf8(out, points[done]);
    };
    while (const auto found = search.find(done)) {
        copy(found->first);
        out += to;
        check_growth(out.size(), longest);
        done = found->second;
    }
    copy(points.size());
    return out;
}

std::string strip(const std::string& text, bool left, bool right) {
    const std::u32string points = to_code_points(text);
    size_t begin = 0, end = points.size();
    while (left && begin < end && is_white_space(points[begin])) ++begin;
    while (right && end > begin && is_white_space(points[end - 1])) --end;
    std::string out;
    for (size_t i = begin; i < end; ++i) append_utf8(out, points[i]);
    return out;
}

std::string clean_text(const std::string& text) {
    std::string out;
    for (const char32_t c : to_code_points(text)) {
        if (c == 0 || c == 0xFFFD || is_bert_control(c)) continue;
        append_utf8(out, is_white_space(c) ? U' ' : c);
    }
    return out;
}

std::string remove(const std::string& text, bool (*is_removed)(char32_t)) {
    std::string out;
    for (const char32_t c : to_code_points(text)) {
        if (!is_removed(c)) append_utf8(out, c);
    }
    return out;
}

std::string space_ideographs(const std::string& text) {
    std::string out;
    for (const char32_t c : to_code_points(text)) {
        const bool ideograph = is_cjk_ideograph(c);
        if (ideograph) out += ' ';
        append_utf8(out, c);
        if (ideograph) out += ' ';
    }
    return out;
}

}  // namespace

Normalizer::Normalizer(const JsonView& json) { add(json, 0); }

void Normalizer::add(const JsonView& json, int depth) {
    static const std::map<std::string, NormalForm> forms{{"NFC", NormalForm::nfc},
                                                         {"NFD", NormalForm::nfd},
                                                         {"NFKC", NormalForm::nfkc},
                                                         {"NFKD", NormalForm::nfkd}};
    const std::string type = json.at("type").string();
    if (const auto form = forms.find(type); form != forms.end()) {
        steps_.emplace_back(
            [form = form->second](const std::string& t, size_t) { return normalize(t, form); });
    } else if (type == "Sequence" && depth < 8) {
        const JsonView parts = json.at("normalizers");
        for (size_t i = 0; i < parts.array().size(); ++i) add(parts.at(i), depth + 1);
    } else if (type == "Lowercase") {
        steps_.emplace_back([](const std::string& t, size_t) { return lower_case(t); });
    } else if (type == "StripAccents") {
        steps_.emplace_back([](const std::string& t, size_t) { return remove(t, is_mark); });
    } else if (type == "Strip") {
        const bool left = json.boolean("strip_left", true), right = json.boolean("strip_right", true);
        steps_.emplace_back([left, right](const std::string& t, size_t) { return strip(t, left, right); });
    } else if (type == "Prepend") {
        prepends_ = true;
        steps_.emplace_back([text = insertion(json.at("prepend"))](const std::string& t, size_t) {
            return t.empty() ? t : text + t;
        });
    } else if (type == "Replace") {
        add_replace(json);
    } else if (type == "BertNormalizer") {
        add_bert(json);
    } else if (type == "Precompiled" && json.find("precompiled_charsmap")) {
        add_char_map(json);
    } else {
        fail(ErrorCode::unsupported, "tokenizer", "{}: the normalizer {} is not known", json.where(),
             json.json().dump());
    }
    check_steps(steps_.size(), json);
}

void Normalizer::add_replace(const JsonView& json) {
    const auto text = json.at("pattern").find("String");
    const std::string to = insertion(json.at("content"));
    if (!text) {
        const Regex pattern(json.at("pattern").at("Regex").string());
        steps_.emplace_back([pattern, to](const std::string& t, size_t longest) {
            return replace_matches(t, pattern, to, longest);
        });
        return;
    }
    const std::string from = text->string();
    if (from.empty()) text->expected("a text that is not empty");
    if (from == " " && to.find(' ') == std::string::npos) replaces_spaces_ = true;
    steps_.emplace_back(
        [from, to](const std::string& t, size_t longest) { return replace_all(t, from, to, longest); });
}

void Normalizer::add_char_map(const JsonView& json) {
    const JsonView field = json.at("precompiled_charsmap");
    const auto bytes = from_base64(field.string());
    if (!bytes) field.expected("base64");
    const auto map = std::make_shared<const CharMap>(*bytes, field.where());
    steps_.emplace_back([map](const std::string& t, size_t longest) { return map->replaced(t, longest); });
}

void Normalizer::add_bert(const JsonView& json) {
    const bool lower = json.boolean("lowercase", true);
    if (json.boolean("clean_text", true))
        steps_.emplace_back([](const std::string& t, size_t) { return clean_text(t); });
    if (json.boolean("handle_chinese_chars", true))
        steps_.emplace_back([](const std::string& t, size_t) { return space_ideographs(t); });
    if (json.boolean("strip_accents", lower)) {
        steps_.emplace_back([](const std::string& t, size_t) {
            return remove(normalize(t, NormalForm::nfd), is_bert_accent);
        });
    }
    if (lower) steps_.emplace_back([](const std::string& t, size_t) { return lower_case(t); });
}

std::string Normalizer::operator()(std::string text) const {
    const size_t longest = longest_result(text.size());
    for (const Step& step : steps_) {
        text = step(text, longest);
        check_growth(text.size(), longest);
    }
    return text;
}

}  // namespace refold
