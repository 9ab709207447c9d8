#include "text/jinja/text_functions.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/budget.h"

namespace refold::jinja {
namespace {

void add_part(std::vector<std::string_view>& parts, std::string_view part) {
    constexpr size_t kChecked = 4096;
    parts.push_back(part);
    if (parts.size() % kChecked == 0) check_memory(parts.size() * sizeof(Text));
}

}  // namespace

void check_search(std::string_view text, std::string_view wanted) {
    constexpr uint64_t kComparedInAStep = 1024;
    if (wanted.size() <= text.size())
        count_steps((text.size() - wanted.size() + 1) * wanted.size() / kComparedInAStep);
}

Value strip_text(const std::string& text, const Value& chars, const Strip& sides) {
    check_defined(chars);
    if (chars.is_none()) return Value::text(std::string(strip(text, nullptr, sides)));
    if (!chars.is_text()) throw TemplateError("strip: expected a text or none");
    const std::u32string marks = points_of(chars.str());
    count_steps(text.size() * (1 + marks.size() / 16) / 16);
    return Value::text(std::string(strip(text, &marks, sides)));
}

Value replace_text(const std::string& text, const std::string& old, const std::string& replacement,
                   int64_t most) {
    check_search(text, old);
    std::string out;
    size_t at = 0;
    const auto add = [&](std::string_view part) {
        if (out.size() + part.size() > kMostText) check_text(out.size() + part.size());
        out += part;
    };
    for (; most != 0 && at <= text.size(); --most) {
        size_t found = at, end = 0;
        if (!old.empty()) {
            found = text.find(old, at);
            if (found == std::string::npos) break;
            end = found + old.size();
            add(std::string_view(text).substr(at, found - at));
            add(replacement);
        } else {
            // The replacement stands before every character and at the end.
            add(replacement);
            if (at == text.size()) return Value::text(std::move(out));
            end = at;
            next_point(text, end);
            add(std::string_view(text).substr(at, end - at));
        }
        at = end;
    }
    add(std::string_view(text).substr(std::min(at, text.size())));
    return Value::text(std::move(out));
}

std::vector<std::string_view> split_text(std::string_view text, std::string_view mark, int64_t most,
                                         bool last) {
    check_search(text, mark);
    std::vector<std::string_view> out;
    for (; most != 0; --most) {
        const size_t at = last ? text.rfind(mark) : text.find(mark);
        if (at == std::string_view::npos) break;
        add_part(out, last ? text.substr(at + mark.size()) : text.substr(0, at));
        text = last ? text.substr(0, at) : text.substr(at + mark.size());
    }
    out.push_back(text);
    if (last) std::ranges::reverse(out);
    return out;
}

std::vector<std::string_view> split_spaces(std::string_view text, int64_t most, bool last) {
    std::vector<std::string_view> out;
    const Strip first_side = last ? Strip{.left = false} : Strip{.right = false};
    for (text = strip(text, nullptr, first_side); !text.empty(); text = strip(text, nullptr, first_side)) {
        if (most-- == 0) {
            out.push_back(text);
            break;
        }
        // The word ends at white space.
        size_t begin = 0, end = text.size();
        if (last) {
            for (size_t at = text.size(); at > 0;) {
                const size_t behind = at--;
                while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
                size_t next = at;
                if (!is_space(next_point(text, next))) continue;
                begin = behind;
                break;
            }
            add_part(out, text.substr(begin));
            text = text.substr(0, begin);
        } else {
            for (size_t at = 0; at < text.size();) {
                const size_t here = at;
                if (!is_space(next_point(text, at))) continue;
                end = here;
                break;
            }
            add_part(out, text.substr(0, end));
            text = text.substr(end);
        }
    }
    if (last) std::ranges::reverse(out);
    return out;
}

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '\'': out += "&#39;"; break;
            case '"': out += "&#34;"; break;
            default: out += c;
        }
    }
    return out;
}

std::string escaped(const Value& text) { return text.as_text().markup ? text.str() : escaped(text.str()); }

bool is_in_case(std::string_view text, bool upper_case) {
    bool any = false;
    for (size_t at = 0; at < text.size();) {
        const char32_t point = next_point(text, at);
        if (is_title(point) || (upper_case ? is_lower(point) : is_upper(point))) return false;
        any = any || (upper_case ? is_upper(point) : is_lower(point));
    }
    return any;
}

}  // namespace refold::jinja
