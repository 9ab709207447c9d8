// Filters that make a text or a number.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/numbers.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

// Filters of texts take any value, as the text that str() makes of it.
std::string self(const Call& call) { return to_str(call.self); }

Value escape(Call& call) {
    if (call.self.is_text() && call.self.as_text().markup) return call.self;
    return Value::text(escaped(self(call)), true);
}

// Words begin behind white space, "-" and opening brackets.
Value title_filter(Call& call) {
    const std::u32string points = points_of(self(call));
    std::string out;
    const auto separates = [](char32_t c) {
        return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    };
    for (size_t at = 0; at < points.size();) {
        size_t end = at;
        while (end < points.size() && separates(points[end]) == separates(points[at])) ++end;
        out += upper(utf8_of(std::u32string_view(points).substr(at, 1)));
        out += lower(utf8_of(std::u32string_view(points).substr(at + 1, end - at - 1)));
        at = end;
    }
    return Value::text(std::move(out));
}

Value center(Call& call) {
    const Arguments width = {.positional = {call.integer_or(0, 80)}, .named = {}};
    const Value text = Value::text(self(call));
    return call_value(get_attribute(call.environment, text, "center"), width);
}

Value replace(Call& call) {
    const int64_t most = call.has(2) && !call.value(2).is_none() ? call.integer(2) : -1;
    return replace_text(self(call), to_str(call.value(0)), to_str(call.value(1)), most);
}

Value indent(Call& call) {
    check_defined(call.self);
    if (!call.self.is_text()) call.fail("expected a text");
    const Value width = call.value_or(0, int64_t{4});
    constexpr int64_t kWidest = kMostText;
    std::string indention;
    if (width.is_text()) {
        indention = width.str();
    } else {
        check_text(
            static_cast<uint64_t>(std::clamp<int64_t>(call.has(0) ? call.integer(0) : 4, 0, kWidest + 1)));
        indention.assign(static_cast<size_t>(std::max<int64_t>(width.as_int(), 0)), ' ');
    }
    const bool first = call.flag(1), blank = call.flag(2);
    const std::string text = call.self.str() + "\n";
    const auto lines = split_lines(text, false);
    std::string out;
    for (size_t i = 0; i < lines.size(); ++i) {
        const bool indented = i == 0 ? first : blank || !lines[i].empty();
        check_text(out.size() + lines[i].size() + indention.size() + 1);
        if (i > 0) out += '\n';
        if (indented) out += indention;
        out += lines[i];
    }
    return Value::text(std::move(out));
}

Value truncate(Call& call) {
    const int64_t length = call.integer_or(0, 255);
    const std::string end = call.has(2) ? call.text(2) : "...";
    const int64_t leeway = call.has(3) && !call.value(3).is_none() ? call.integer(3) : 5;
    const auto of_end = static_cast<int64_t>(code_points(end));
    if (length < of_end || leeway < 0) call.fail("the length is too small, or the leeway negative");
    const auto known = length_of(call.self);
    if (!known) call.fail("expected a text");
    const auto size = static_cast<int64_t>(*known);
    if (size <= length || size - length <= leeway) return call.self;
    if (!call.self.is_text()) call.fail("expected a text");
    const std::string& text = call.self.str();
    std::string cut = text.substr(0, byte_of(text, static_cast<size_t>(length - of_end)));
    if (!call.flag(1)) cut = cut.substr(0, cut.rfind(' '));
    return Value::text(cut + end);
}

Value wordcount(Call& call) {
    int64_t out = 0;
    bool within = false;
    for (const char32_t point : points_of(self(call))) {
        const bool word = is_alnum(point) || point == U'_';
        out += word && !within ? 1 : 0;
        within = word;
    }
    return out;
}

Value to_float(Call& call) {
    const Value otherwise = call.value_or(0, 0.0);
    check_defined(call.self);
    if (call.self.is_text()) {
        const auto number = parse_float(call.self.str());
        return number ? Value(*number) : otherwise;
    }
    if (!call.self.is_integral() && !call.self.is_float() && !call.self.is_big()) return otherwise;
    return to_double(call.self);
}

Value to_int(Call& call) {
    const Value otherwise = call.value_or(0, int64_t{0});
    check_defined(call.self);
    if (call.self.is_text()) {
        if (const auto number = parse_int(call.self.str(), call.integer_or(1, 10))) return *number;
        const auto number = parse_float(call.self.str());
        return number && std::isfinite(*number) ? integer_of(*number) : otherwise;
    }
    if (call.self.is_float()) {
        if (std::isnan(call.self.as_float())) return otherwise;
        return integer_of(call.self.as_float());
    }
    if (call.self.is_bool()) return call.self.as_int();
    return call.self.is_int() || call.self.is_big() ? call.self : otherwise;
}

Value absolute(Call& call) {
    check_defined(call.self);
    if (call.self.is_float()) return std::abs(call.self.as_float());
    if (!call.self.is_integral() && !call.self.is_big()) call.fail("expected a number");
    const bool negative = call.self.is_big() ? call.self.as_big().starts_with('-') : call.self.as_int() < 0;
    return negative ? negate(call.self) : call.self.is_bool() ? Value(call.self.as_int()) : call.self;
}

Value round(Call& call) {
    check_defined(call.self);
    if (!call.self.is_float() && !call.self.is_integral() && !call.self.is_big())
        call.fail("expected a number");
    const int64_t precision = call.integer_or(0, 0);
    const std::string method = call.has(1) ? call.text(1) : "common";
    if (method == "common") return round_number(call.self, precision);
    if (method != "ceil" && method != "floor") call.fail("the method must be common, ceil or floor");
    const Value power = compute("**", int64_t{10}, precision);
    const double scaled = to_double(compute("*", call.self, power));
    return compute("/", integer_of(method == "ceil" ? std::ceil(scaled) : std::floor(scaled)), power);
}

Value format(Call& call) {
    if (!call.given.positional.empty() && !call.given.named.empty())
        call.fail("cannot take positional and keyword arguments at the same time");
    Value arguments = Value::tuple(call.given.positional);
    if (!call.given.named.empty()) {
        std::vector<Entry> entries;
        for (const auto& [name, value] : call.given.named) entries.push_back({Value::text(name), value});
        arguments = make_dict(std::move(entries));
    }
    return Value::text(format_percent(self(call), arguments));
}

Value filesizeformat(Call& call) {
    const Value as_float = to_float(call);
    const double bytes = as_float.as_float();
    const bool binary = call.flag(0);
    const double base = binary ? 1024 : 1000;
    if (bytes == 1) return Value::text("1 Byte");
    if (bytes < base) return Value::text(fmt::format("{} Bytes", to_str(integer_of(bytes))));
    constexpr std::string_view kPrefixes = "kMGTPEZY";
    double unit = base;
    char prefix = 'Y';
    for (size_t i = 0; i < kPrefixes.size(); ++i) {
        unit *= base;
        prefix = binary && i == 0 ? 'K' : kPrefixes[i];
        if (bytes < unit) break;
    }
    return Value::text(fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, binary ? "iB" : "B"));
}

void add_quoted_url(std::string& out, const std::string& text, bool for_query) {
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !for_query);
        if (for_query && c == ' ') {
            out += '+';
        } else if (plain) {
            out += c;
        } else {
            out += fmt::format("%{:02X}", byte);
        }
    }
}

Value urlencode(Call& call) {
    std::string out;
    const Value& value = call.self;
    check_defined(value);
    if (value.is_text() || (!value.has_items() && !value.is_dict() && !value.is_object())) {
        add_quoted_url(out, to_str(value), false);
        return Value::text(std::move(out));
    }
    const Items items = to_items(value.is_dict() ? make_view(value.dict_pointer(), ViewKind::items) : value);
    for (const Value& item : items) {
        const Items pair = to_items(item);
        if (pair.size() != 2) call.fail("expected pairs of a name and a value");
        if (!out.empty()) out += '&';
        add_quoted_url(out, to_str(pair[0]), true);
        out += '=';
        add_quoted_url(out, to_str(pair[1]), true);
    }
    return Value::text(std::move(out));
}

Value xmlattr(Call& call) {
    if (!call.self.is_dict()) call.fail("expected a mapping");
    std::string out;
    for (const auto& [key, value] : call.self.as_dict().entries()) {
        if (value.is_none() || value.is_undefined()) continue;
        if (!key.is_text() || key.str().find_first_of(" \t\n\r\f\v/>=") != std::string::npos)
            call.fail("the name of an attribute has an invalid character");
        out += (out.empty() ? "" : " ") + escaped(key.str()) + "=\"" + escaped(to_str(value)) + "\"";
    }
    const bool spaced = !call.has(0) || call.flag(0);
    return Value::text(spaced && !out.empty() ? " " + out : out);
}

std::string replaced_all(std::string text, std::string_view mark, std::string_view by) {
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size())
        text.replace(at, mark.size(), by);
    return text;
}

std::optional<std::string> json_indent(const Call& call, size_t i) {
    if (!call.has(i) || call.value(i).is_none()) return std::nullopt;
    if (call.value(i).is_text()) return call.text(i);
    const int64_t spaces = std::max<int64_t>(call.integer(i), 0);
    check_text(static_cast<uint64_t>(spaces));
    return std::string(static_cast<size_t>(spaces), ' ');
}

// As transformers defines it; as Jinja does for tasks, where it writes markup for HTML.
Value tojson(Call& call) {
    if (call.environment.is_task) {
        if (call.has(2) || call.has(3) || (call.has(0) && call.has(1)))
            call.fail("in tasks, the only argument is indent");
        JsonOptions options{
            .ascii = true, .sort_keys = true, .indent = json_indent(call, call.has(1) ? 1 : 0)};
        if (options.indent) options.item_separator = ",";
        std::string text = to_json(call.self, options);
        for (const char mark : {'<', '>', '&', '\''})
            text = replaced_all(std::move(text), std::string_view(&mark, 1), fmt::format("\\u{:04x}", mark));
        return Value::text(std::move(text), true);
    }
    JsonOptions options{.ascii = call.flag(0), .sort_keys = call.flag(3), .indent = json_indent(call, 1)};
    if (options.indent) options.item_separator = ",";
    if (call.has(2) && !call.value(2).is_none()) {
        const Items separators = to_items(call.value(2));
        if (separators.size() != 2 || !separators[0].is_text() || !separators[1].is_text())
            call.fail("separators are two texts");
        options.item_separator = separators[0].str();
        options.key_separator = separators[1].str();
    }
    return Value::text(to_json(call.self, options));
}

Value unsupported(Call& call) { call.fail("this filter is not supported"); }

}  // namespace

const Definitions& text_filters() {
    static const Definitions kFilters = {
        {"abs", {absolute}},
        {"capitalize", {[](Call& call) { return Value::text(capitalize(self(call))); }}},
        {"center", {center, {"width"}}},
        {"e", {escape}},
        {"escape", {escape}},
        {"filesizeformat", {filesizeformat, {"binary"}}},
        {"float", {to_float, {"default"}}},
        {"forceescape", {[](Call& call) { return Value::text(escaped(self(call)), true); }}},
        {"format", {format, {}, 0, true}},
        {"indent", {indent, {"width", "first", "blank"}}},
        {"int", {to_int, {"default", "base"}}},
        {"lower", {[](Call& call) { return Value::text(lower(self(call))); }}},
        {"pprint", {unsupported, {}, 0, true}},
        {"replace", {replace, {"old", "new", "count"}, 2}},
        {"round", {round, {"precision", "method"}}},
        {"safe", {[](Call& call) { return Value::text(self(call), true); }}},
        {"string", {[](Call& call) { return call.self.is_text() ? call.self : Value::text(self(call)); }}},
        {"striptags", {unsupported, {}, 0, true}},
        {"title", {title_filter}},
        {"tojson", {tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}}},
        {"trim", {[](Call& call) { return strip_text(self(call), call.value_or(0, {}), {}); }, {"chars"}}},
        {"truncate", {truncate, {"length", "killwords", "end", "leeway"}}},
        {"upper", {[](Call& call) { return Value::text(upper(self(call))); }}},
        {"urlencode", {urlencode}},
        {"urlize", {unsupported, {}, 0, true}},
        {"wordcount", {wordcount}},
        {"wordwrap", {unsupported, {}, 0, true}},
        {"xmlattr", {xmlattr, {"autospace"}}},
    };
    return kFilters;
}

}  // namespace refold::jinja
