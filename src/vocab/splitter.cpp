#include "vocab/splitter.h"

#include <algorithm>
#include <map>

#include "core/error.h"
#include "vocab/decoder.h"
#include "vocab/growth.h"
#include "vocab/regex.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

struct Range {
    size_t begin, end;
    bool is_match;
};
// Adjacent ranges over a whole text: matches of a pattern, and what is between them.
using Ranges = std::vector<Range>;
using Pattern = std::function<Ranges(std::u32string_view)>;

Pattern pattern_of(bool (*is_member)(char32_t)) {
    return [is_member](std::u32string_view text) {
        Ranges out;
        for (size_t at = 0; at < text.size(); ++at) {
            const bool is_match = is_member(text[at]);
            if (is_match || out.empty() || out.back().is_match) out.push_back({at, at, is_match});
            ++out.back().end;
        }
        return out;
    };
}

template <typename Find>
Ranges ranges_of(std::u32string_view text, const Find& find) {
    Ranges out;
    size_t done = 0;
    while (const auto found = find(done)) {
        if (found->first > done) out.push_back({done, found->first, false});
        out.push_back({found->first, found->second, true});
        done = found->second;
    }
    if (done < text.size()) out.push_back({done, text.size(), false});
    return out;
}

Pattern pattern_of(const Regex& regex) {
    return [regex](std::u32string_view text) {
        Regex::Search search(regex, text);
        return ranges_of(text, [&](size_t from) { return search.find(from); });
    };
}

Pattern pattern_of_text(const std::u32string& wanted) {
    return [wanted](std::u32string_view text) {
        return ranges_of(text, [&](size_t from) -> std::optional<std::pair<size_t, size_t>> {
            const size_t at = text.find(wanted, from);
            if (at == std::u32string_view::npos) return std::nullopt;
            return std::pair{at, at + wanted.size()};
        });
    };
}

enum class Behavior { removed, isolated, with_previous, with_next, contiguous };

Behavior behavior_of(const JsonView& json, const std::string& fallback) {
    static const std::map<std::string, Behavior> names{{"Removed", Behavior::removed},
                                                       {"Isolated", Behavior::isolated},
                                                       {"MergedWithPrevious", Behavior::with_previous},
                                                       {"MergedWithNext", Behavior::with_next},
                                                       {"Contiguous", Behavior::contiguous}};
    const auto name = names.find(json.string("behavior", fallback));
    if (name == names.end()) {
        fail(ErrorCode::unsupported, "tokenizer", "{}: the behavior of {} is not known", json.where(),
             json.json().dump());
    }
    return name->second;
}

// Joins a match that follows no match with what comes before it.
Ranges joined_with_previous(const Ranges& ranges) {
    Ranges out;
    bool after_match = false;
    for (const Range& range : ranges) {
        if (range.is_match && !after_match && !out.empty()) {
            out.back().end = range.end;
        } else {
            out.push_back(range);
        }
        after_match = range.is_match;
    }
    return out;
}

// Joins a match that no match follows with what comes after it.
Ranges joined_with_next(const Ranges& ranges) {
    Ranges out;
    bool before_match = false;
    for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->is_match && !before_match && !out.empty()) {
            out.back().begin = range->begin;
        } else {
            out.push_back(*range);
        }
        before_match = range->is_match;
    }
    std::reverse(out.begin(), out.end());
    return out;
}

Ranges contiguous(const Ranges& ranges) {
    Ranges out;
    for (const Range& range : ranges) {
        if (!out.empty() && out.back().is_match == range.is_match) {
            out.back().end = range.end;
        } else {
            out.push_back(range);
        }
    }
    return out;
}

struct Cut {
    Pattern pattern;
    Behavior behavior = Behavior::isolated;
    bool invert = false;

    void operator()(const Splitter::Part& part, std::vector<Splitter::Part>& out) const {
        const std::u32string text = to_code_points(part.text);
        Ranges ranges = pattern(text);
        if (invert) {
            for (Range& range : ranges) range.is_match = !range.is_match;
        }
        if (behavior == Behavior::removed) std::erase_if(ranges, [](const Range& r) { return r.is_match; });
        if (behavior == Behavior::with_previous) ranges = joined_with_previous(ranges);
        if (behavior == Behavior::with_next) ranges = joined_with_next(ranges);
        if (behavior == Behavior::contiguous) ranges = contiguous(ranges);
        for (const Range& range : ranges) {
            out.push_back({{}, part.at_start && range.begin == 0});
            for (size_t i = range.begin; i < range.end; ++i) append_utf8(out.back().text, text[i]);
        }
    }
};

}  // namespace

Splitter::Splitter(const JsonView& json) { add(json, 0); }

void Splitter::add(const JsonView& json, int depth) {
    const std::string type = json.at("type").string();
    if (type == "Sequence" && depth < 8) {
        const JsonView parts = json.at("pretokenizers");
        for (size_t i = 0; i < parts.array().size(); ++i) add(parts.at(i), depth + 1);
    } else if (type == "ByteLevel") {
        add_byte_level(json);
    } else if (type == "Metaspace") {
        add_metaspace(json);
    } else if (type == "Split") {
        add_split(json);
    } else if (type == "Digits") {
        const bool single = json.boolean("individual_digits", false);
        steps_.emplace_back(Cut{pattern_of(is_numeric), single ? Behavior::isolated : Behavior::contiguous});
    } else if (type == "Punctuation") {
        steps_.emplace_back(Cut{pattern_of(is_bert_punctuation), behavior_of(json, "Isolated")});
    } else if (type == "WhitespaceSplit") {
        steps_.emplace_back(Cut{pattern_of(is_white_space), Behavior::removed});
    } else if (type == "Whitespace") {
        steps_.emplace_back(Cut{pattern_of(Regex(R"(\w+|[^\w\s]+)")), Behavior::removed, true});
    } else if (type == "BertPreTokenizer") {
        steps_.emplace_back(Cut{pattern_of(is_white_space), Behavior::removed});
        steps_.emplace_back(Cut{pattern_of(is_bert_punctuation), Behavior::isolated});
    } else {
        fail(ErrorCode::unsupported, "tokenizer", "{}: the pre-tokenizer {} is not known", json.where(),
             json.json().dump());
    }
    check_steps(steps_.size(), json);
}

void Splitter::add_split(const JsonView& json) {
    const JsonView pattern = json.at("pattern");
    const auto text = pattern.find("String");
    if (text && text->string().empty()) text->expected("a text that is not empty");
    steps_.emplace_back(Cut{text ? pattern_of_text(to_code_points(text->string()))
                                 : pattern_of(Regex(pattern.at("Regex").string())),
                            behavior_of(json, "Isolated"), json.boolean("invert", false)});
}

void Splitter::add_byte_level(const JsonView& json) {
    if (json.boolean("add_prefix_space", true)) {
        steps_.emplace_back([](const Part& part, Parts& out) {
            out.push_back({part.text.starts_with(' ') ? part.text : " " + part.text, part.at_start});
        });
    }
    if (json.boolean("use_regex", true))
        steps_.emplace_back(Cut{pattern_of(Regex(kByteLevelWords)), Behavior::isolated});
    steps_.emplace_back([](const Part& part, Parts& out) {
        out.push_back({{}, part.at_start});
        for (const char c : part.text)
            append_utf8(out.back().text, byte_level_character(static_cast<unsigned char>(c)));
    });
}

void Splitter::add_metaspace(const JsonView& json) {
    const std::string mark = json.string("replacement", "\u2581");
    // Old files have only add_prefix_space.
    const bool prefix = json.boolean("add_prefix_space", true);
    const std::string scheme = prefix ? json.string("prepend_scheme", "always") : "never";
    if (to_code_points(mark).size() != 1 || (scheme != "always" && scheme != "first" && scheme != "never")) {
        json.expected("a replacement of one character and the prepend_scheme always, first or never");
    }
    steps_.emplace_back([mark, scheme](const Part& part, Parts& out) {
        std::string text;
        for (const char c : part.text) {
            if (c == ' ') {
                text += mark;
            } else {
                text += c;
            }
        }
        const bool prepend = scheme == "always" || (scheme == "first" && part.at_start);
        if (prepend && !text.starts_with(mark)) text.insert(0, mark);
        out.push_back({std::move(text), part.at_start});
    });
    if (json.boolean("split", true))
        steps_.emplace_back(Cut{pattern_of_text(to_code_points(mark)), Behavior::with_next});
}

std::vector<std::string> Splitter::operator()(Part whole) const {
    Parts parts;
    parts.push_back(std::move(whole));
    const size_t longest = longest_result(parts.front().text.size());
    for (const Step& step : steps_) {
        Parts next;
        for (const Part& part : parts) {
            if (!part.text.empty()) step(part, next);
        }
        parts = std::move(next);
        size_t size = 0;  // which a step at most multiplies by a few
        for (const Part& part : parts) size += part.text.size();
        check_growth(size, longest);
    }
    std::vector<std::string> out;
    for (Part& part : parts) {
        if (!part.text.empty()) out.push_back(std::move(part.text));
    }
    return out;
}

}  // namespace refold
