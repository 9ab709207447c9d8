// The methods of Python's str.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

constexpr int64_t kAll = -1;  // of splits and replacements

const std::string& self(const Call& call) { return call.self.str(); }

// text[start:end] of the arguments `first` and `first` + 1.
struct Part {
    std::string_view text;
    int64_t start = 0;   // code points before it
    bool valid = false;  // false: it begins behind the text's end
};
Part part(const Call& call, size_t first) {
    const auto size = static_cast<int64_t>(call.self.as_text().length);
    const auto bound = [&](size_t i, int64_t other) {
        if (!call.has(i) || call.value(i).is_none()) return other;
        const int64_t given = call.integer(i);
        return given < 0 ? std::max<int64_t>(given + size, 0) : given;
    };
    const int64_t start = bound(first, 0), end = std::min(bound(first + 1, size), size);
    if (start > size || start > end) return {};
    const std::string_view text = self(call);
    const size_t from = byte_of(text, static_cast<size_t>(start)),
                 to = byte_of(text, static_cast<size_t>(end));
    return {text.substr(from, to - from), start, true};
}

int64_t found_at(const Call& call, bool last) {
    const Part in = part(call, 1);
    if (!in.valid) return -1;
    check_search(in.text, call.text(0));
    const size_t at = last ? in.text.rfind(call.text(0)) : in.text.find(call.text(0));
    if (at == std::string_view::npos) return -1;
    return in.start + static_cast<int64_t>(code_points(in.text.substr(0, at)));
}

Value find(Call& call) { return found_at(call, false); }
Value rfind(Call& call) { return found_at(call, true); }
Value required(Call& call, bool last) {
    const int64_t at = found_at(call, last);
    if (at < 0) throw TemplateError("substring not found");
    return at;
}

Value count(Call& call) {
    const Part in = part(call, 1);
    if (!in.valid) return int64_t{0};
    const std::string& wanted = call.text(0);
    if (wanted.empty()) return static_cast<int64_t>(code_points(in.text)) + 1;
    check_search(in.text, wanted);
    int64_t out = 0;
    for (size_t at = 0; (at = in.text.find(wanted, at)) != std::string_view::npos; at += wanted.size()) ++out;
    return out;
}

Value starts_or_ends(Call& call, bool ends) {
    const Part in = part(call, 1);
    const auto matches = [&](const Value& affix) {
        if (!affix.is_text()) call.fail("expected a text or a tuple of texts");
        return in.valid && (ends ? in.text.ends_with(affix.str()) : in.text.starts_with(affix.str()));
    };
    if (!call.value(0).is_tuple()) return matches(call.value(0));
    return std::ranges::any_of(call.value(0).items(), matches);
}

Value justified(Call& call, bool left, bool right) {
    const int64_t width = call.integer(0);
    const std::string fill = call.has(1) ? call.text(1) : " ";
    if (code_points(fill) != 1) call.fail("the fill character must be one character");
    const auto length = static_cast<int64_t>(call.self.as_text().length);
    if (width <= length) return call.self;
    const int64_t padding = width - length;
    const int64_t before = left && right ? padding / 2 + (padding & width & 1) : left ? padding : 0;
    check_text(static_cast<uint64_t>(padding) * fill.size() + self(call).size());
    std::string out;
    for (int64_t i = 0; i < padding; ++i) {
        if (i == before) out += self(call);
        out += fill;
    }
    if (before == padding) out += self(call);
    return Value::text(std::move(out));
}

Value zfill(Call& call) {
    const int64_t width = call.integer(0);
    const auto length = static_cast<int64_t>(call.self.as_text().length);
    if (width <= length) return call.self;
    check_text(static_cast<uint64_t>(width - length) + self(call).size());
    const std::string& text = self(call);
    const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    return Value::text(text.substr(0, sign) + std::string(static_cast<size_t>(width - length), '0') +
                       text.substr(sign));
}

Value expandtabs(Call& call) {
    const int64_t size = call.integer_or(0, 8);
    std::string out;
    int64_t column = 0;
    for (const char c : self(call)) {
        if (c == '\t') {
            const int64_t spaces = size > 0 ? size - column % size : 0;
            check_text(out.size() + static_cast<uint64_t>(spaces));
            out.append(static_cast<size_t>(spaces), ' ');
            column += spaces;
            continue;
        }
        out += c;
        if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) ++column;
        if (c == '\n' || c == '\r') column = 0;
    }
    return Value::text(std::move(out));
}

Value stripped(Call& call, const Strip& sides) {
    return strip_text(self(call), call.has(0) ? call.value(0) : Value(), sides);
}

Value partition(Call& call, bool last) {
    const std::string &text = self(call), &mark = call.text(0);
    if (mark.empty()) call.fail("empty separator");
    check_search(text, mark);
    const size_t at = last ? text.rfind(mark) : text.find(mark);
    const Value none = Value::text("");
    if (at == std::string::npos)
        return last ? Value::tuple({none, none, call.self}) : Value::tuple({call.self, none, none});
    return Value::tuple(
        {Value::text(text.substr(0, at)), call.value(0), Value::text(text.substr(at + mark.size()))});
}

Value remove_affix(Call& call, bool suffix) {
    const std::string &text = self(call), &affix = call.text(0);
    if (suffix)
        return text.ends_with(affix) ? Value::text(text.substr(0, text.size() - affix.size())) : call.self;
    return text.starts_with(affix) ? Value::text(text.substr(affix.size())) : call.self;
}

Value split(Call& call, bool last) {
    const std::string_view text = self(call);
    const int64_t most = call.integer_or(1, kAll);
    const bool by_space = !call.has(0) || call.value(0).is_none();
    if (!by_space && call.text(0).empty()) call.fail("empty separator");
    const auto parts = by_space ? split_spaces(text, most, last) : split_text(text, call.text(0), most, last);
    Items out;
    for (const std::string_view each : parts) out.push_back(Value::text(std::string(each)));
    return Value::list(std::move(out));
}

Value splitlines(Call& call) {
    Items out;
    for (const std::string_view line : split_lines(self(call), call.flag(0)))
        out.push_back(Value::text(std::string(line)));
    return Value::list(std::move(out));
}

Value join(Call& call) {
    std::string out;
    bool first = true;
    for (const Value& item : to_items(call.value(0))) {
        check_defined(item);
        if (!item.is_text()) call.fail(fmt::format("expected texts, found {}", item.type_name()));
        check_text(out.size() + self(call).size() + item.str().size());
        if (!std::exchange(first, false)) out += self(call);
        out += item.str();
    }
    return Value::text(std::move(out));
}

Value replace(Call& call) {
    return replace_text(self(call), call.text(0), call.text(1), call.integer_or(2, kAll));
}

// True if all characters are of a kind; of no characters, `empty`.
template <typename Predicate>
Value all_of(Call& call, Predicate predicate, bool empty = false) {
    if (self(call).empty()) return empty;
    return std::ranges::all_of(points_of(self(call)), predicate);
}

Value istitle(Call& call) {
    bool within_word = false, any = false;
    for (const char32_t point : points_of(self(call))) {
        if (is_upper(point) || is_title(point)) {
            if (within_word) return false;
            within_word = any = true;
        } else if (is_lower(point)) {
            if (!within_word) return false;
        } else {
            within_word = false;
        }
    }
    return any;
}

Value isidentifier(Call& call) {
    const std::u32string points = points_of(self(call));
    return !points.empty() && begins_identifier(points[0]) &&
           std::ranges::all_of(points, continues_identifier);
}

Value format(Call& call) { return Value::text(format_braces(call.environment, self(call), call.given)); }
Value format_map(Call& call) {
    if (!call.value(0).is_dict()) call.fail("expected a mapping");
    Arguments given;
    for (const auto& [key, value] : call.value(0).as_dict().entries())
        if (key.is_text()) given.named.emplace_back(key.str(), value);
    return Value::text(format_braces(call.environment, self(call), given));
}

}  // namespace

const Definitions& text_methods() {
    static const Definitions kMethods = {
        {"capitalize", {[](Call& call) { return Value::text(capitalize(self(call))); }}},
        {"center", {[](Call& call) { return justified(call, true, true); }, {"/width", "/fillchar"}, 1}},
        {"count", {count, {"/sub", "/start", "/end"}, 1}},
        {"endswith",
         {[](Call& call) { return starts_or_ends(call, true); }, {"/suffix", "/start", "/end"}, 1}},
        {"expandtabs", {expandtabs, {"tabsize"}}},
        {"find", {find, {"/sub", "/start", "/end"}, 1}},
        {"format", {format, {}, 0, true}},
        {"format_map", {format_map, {"/mapping"}, 1}},
        {"index", {[](Call& call) { return required(call, false); }, {"/sub", "/start", "/end"}, 1}},
        {"isalnum", {[](Call& call) { return all_of(call, is_alnum); }}},
        {"isalpha", {[](Call& call) { return all_of(call, is_alpha); }}},
        {"isascii", {[](Call& call) {
             return all_of(
                 call, [](char32_t c) { return c < 0x80; }, true);
         }}},
        {"isdecimal", {[](Call& call) { return all_of(call, is_decimal); }}},
        {"isdigit", {[](Call& call) { return all_of(call, is_digit); }}},
        {"isidentifier", {isidentifier}},
        {"islower", {[](Call& call) { return Value(is_in_case(self(call), false)); }}},
        {"isprintable", {[](Call& call) { return all_of(call, is_printable, true); }}},
        {"isspace", {[](Call& call) { return all_of(call, is_space); }}},
        {"istitle", {istitle}},
        {"isupper", {[](Call& call) { return Value(is_in_case(self(call), true)); }}},
        {"join", {join, {"/iterable"}, 1}},
        {"ljust", {[](Call& call) { return justified(call, false, true); }, {"/width", "/fillchar"}, 1}},
        {"lower", {[](Call& call) { return Value::text(lower(self(call))); }}},
        {"lstrip", {[](Call& call) { return stripped(call, {.right = false}); }, {"/chars"}}},
        {"partition", {[](Call& call) { return partition(call, false); }, {"/sep"}, 1}},
        {"removeprefix", {[](Call& call) { return remove_affix(call, false); }, {"/prefix"}, 1}},
        {"removesuffix", {[](Call& call) { return remove_affix(call, true); }, {"/suffix"}, 1}},
        {"replace", {replace, {"/old", "/new", "/count"}, 2}},
        {"rfind", {rfind, {"/sub", "/start", "/end"}, 1}},
        {"rindex", {[](Call& call) { return required(call, true); }, {"/sub", "/start", "/end"}, 1}},
        {"rjust", {[](Call& call) { return justified(call, true, false); }, {"/width", "/fillchar"}, 1}},
        {"rpartition", {[](Call& call) { return partition(call, true); }, {"/sep"}, 1}},
        {"rsplit", {[](Call& call) { return split(call, true); }, {"sep", "maxsplit"}}},
        {"rstrip", {[](Call& call) { return stripped(call, {.left = false}); }, {"/chars"}}},
        {"split", {[](Call& call) { return split(call, false); }, {"sep", "maxsplit"}}},
        {"splitlines", {splitlines, {"keepends"}}},
        {"startswith",
         {[](Call& call) { return starts_or_ends(call, false); }, {"/prefix", "/start", "/end"}, 1}},
        {"strip", {[](Call& call) { return stripped(call, {}); }, {"/chars"}}},
        {"swapcase", {[](Call& call) { return Value::text(swapcase(self(call))); }}},
        {"title", {[](Call& call) { return Value::text(title(self(call))); }}},
        {"upper", {[](Call& call) { return Value::text(upper(self(call))); }}},
        {"zfill", {zfill, {"/width"}, 1}},
    };
    return kMethods;
}

}  // namespace refold::jinja
