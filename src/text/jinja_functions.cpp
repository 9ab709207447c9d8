#include "text/jinja_functions.h"

#include <jinja/value.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>

namespace refold {
namespace {

using jinja::func_args;
using jinja::mk_val;
using jinja::value;

constexpr int kDeepest = 64;  // levels of a literal

std::string text_of(const func_args& args, size_t position) {
    const value given = args.get_pos(position);
    if (!jinja::is_val<jinja::value_string>(given)) {
        throw std::runtime_error(args.func_name + ": argument " + std::to_string(position + 1) +
                                 " is no text but " + given->type());
    }
    return given->as_string().str();
}

value index(const func_args& args) {
    args.ensure_count(2, 2);
    const value list = args.get_pos(0), item = args.get_pos(1);
    if (jinja::is_val<jinja::value_string>(list)) {
        const size_t at = text_of(args, 0).find(text_of(args, 1));
        if (at != std::string::npos) return mk_val<jinja::value_int>(static_cast<int64_t>(at));
    } else if (jinja::is_val<jinja::value_array>(list)) {
        const auto& entries = list->as_array();
        const auto found = std::ranges::find_if(entries, [&](const value& v) { return *v == *item; });
        if (found != entries.end()) return mk_val<jinja::value_int>(found - entries.begin());
    } else {
        throw std::runtime_error("index: " + list->type() + " is neither a list nor a text");
    }
    throw std::runtime_error("index: " + jinja::value_to_json(item) + " is not in " +
                             jinja::value_to_json(list));
}

value between(const func_args& args) {
    args.ensure_count(3, 3);
    const std::string text = text_of(args, 0), begin = text_of(args, 1), end = text_of(args, 2);
    size_t from = text.find(begin);
    if (from == std::string::npos) throw std::runtime_error("between: the text has no '" + begin + "'");
    from += begin.size();
    const size_t to = end.empty() ? text.size() : text.rfind(end);
    if (to == std::string::npos || to < from)
        throw std::runtime_error("between: the text has no '" + end + "' after '" + begin + "'");
    return mk_val<jinja::value_string>(text.substr(from, to - from));
}

value remove_between(const func_args& args) {
    args.ensure_count(3, 3);
    const std::string text = text_of(args, 0), begin = text_of(args, 1), end = text_of(args, 2);
    if (begin.empty() || end.empty()) throw std::runtime_error("remove_between: an empty mark");
    std::string out;
    size_t at = 0;
    for (size_t open; (open = text.find(begin, at)) != std::string::npos;) {
        const size_t close = text.find(end, open + begin.size());
        if (close == std::string::npos) break;
        const size_t line = text.find('\n', open);
        const bool one_line = line == std::string::npos || close < line;
        out += text.substr(at, one_line ? open - at : open + begin.size() - at);
        at = one_line ? close + end.size() : open + begin.size();
    }
    return mk_val<jinja::value_string>(out + text.substr(at));
}

value capitalize(const func_args& args) {
    args.ensure_count(1, 1);
    const std::string text = text_of(args, 0);
    std::string out;
    const auto* next = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    for (auto left = static_cast<utf8proc_ssize_t>(text.size()); left > 0;) {
        utf8proc_int32_t point = 0;
        const utf8proc_ssize_t read = utf8proc_iterate(next, left, &point);
        if (read <= 0) throw std::runtime_error("capitalize: the text is not UTF-8");
        const bool first = left == static_cast<utf8proc_ssize_t>(text.size());
        utf8proc_uint8_t bytes[4];
        const auto n = utf8proc_encode_char(first ? utf8proc_totitle(point) : utf8proc_tolower(point), bytes);
        out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
        next += read;
        left -= read;
    }
    return mk_val<jinja::value_string>(out);
}

// Parses Python literals: the output of repr() for lists and mappings of texts, numbers, True, False and
// None.
class LiteralParser {
public:
    explicit LiteralParser(const std::string& text) : text_(text) {}

    value parse() {
        value parsed = next(0);
        skip_space();
        if (at_ != text_.size()) fail_here();
        return parsed;
    }

private:
    [[noreturn]] void fail_here() const {
        throw std::runtime_error("literal: not a Python value at byte " + std::to_string(at_));
    }
    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    }
    bool take(std::string_view expected) {
        if (text_.compare(at_, expected.size(), expected) != 0) return false;
        at_ += expected.size();
        return true;
    }

    value next(int depth) {
        if (depth > kDeepest) fail_here();
        skip_space();
        if (take("True")) return mk_val<jinja::value_bool>(true);
        if (take("False")) return mk_val<jinja::value_bool>(false);
        if (take("None")) return mk_val<jinja::value_none>();
        if (take("[")) return list(depth);
        if (take("{")) return mapping(depth);
        if (at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"'))
            return mk_val<jinja::value_string>(string());
        const size_t end = std::min(text_.find_first_not_of("0123456789-", at_), text_.size());
        if (end == at_ || end - at_ > 18) fail_here();
        const size_t from = at_;
        at_ = end;
        return mk_val<jinja::value_int>(static_cast<int64_t>(std::stoll(text_.substr(from, end - from))));
    }

    value list(int depth) {
        auto entries = mk_val<jinja::value_array>();
        for (;;) {
            skip_space();
            if (take("]")) return entries;
            entries->push_back(next(depth + 1));
            skip_space();
            if (!take(",") && text_.compare(at_, 1, "]") != 0) fail_here();
        }
    }

    value mapping(int depth) {
        auto entries = mk_val<jinja::value_object>();
        for (;;) {
            skip_space();
            if (take("}")) return entries;
            if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail_here();
            const std::string key = string();
            skip_space();
            if (!take(":")) fail_here();
            entries->insert(key, next(depth + 1));
            skip_space();
            if (!take(",") && text_.compare(at_, 1, "}") != 0) fail_here();
        }
    }

    std::string string() {
        const char quote = text_[at_++];
        std::string out;
        for (; at_ < text_.size() && text_[at_] != quote; ++at_) {
            if (text_[at_] != '\\') {
                out += text_[at_];
                continue;
            }
            if (++at_ >= text_.size()) break;
            switch (text_[at_]) {
                case 'n': out += '\n'; break;
                case 't': out += '\t'; break;
                case 'r': out += '\r'; break;
                case 'x': append_point(2, out); break;
                case 'u': append_point(4, out); break;
                case 'U': append_point(8, out); break;
                case '\\':
                case '\'':
                case '"': out += text_[at_]; break;
                default: fail_here();
            }
        }
        if (!take(std::string_view(&quote, 1))) fail_here();
        return out;
    }

    void append_point(size_t digits, std::string& out) {
        utf8proc_int32_t point = 0;
        for (size_t i = 0; i < digits; ++i) {
            if (++at_ >= text_.size() || std::isxdigit(static_cast<unsigned char>(text_[at_])) == 0)
                fail_here();
            point = point * 16 + std::stoi(text_.substr(at_, 1), nullptr, 16);
            if (point > 0x10ffff) fail_here();
        }
        if (!utf8proc_codepoint_valid(point)) fail_here();
        utf8proc_uint8_t bytes[4];
        out.append(reinterpret_cast<const char*>(bytes),
                   static_cast<size_t>(utf8proc_encode_char(point, bytes)));
    }

    const std::string& text_;
    size_t at_ = 0;
};

value literal(const func_args& args) {
    args.ensure_count(1, 1);
    const std::string text = text_of(args, 0);
    return LiteralParser(text).parse();
}

// As Python's str.isspace().
bool is_space(utf8proc_int32_t point) {
    return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20) || point == 0x85 ||
           point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
           point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}

value strip(const func_args& args) {
    args.ensure_count(1, 1);
    const std::string text = text_of(args, 0);
    const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    size_t begin = text.size(), end = 0;
    for (size_t at = 0; at < text.size();) {
        utf8proc_int32_t point = 0;
        const auto read =
            utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &point);
        if (read <= 0) throw std::runtime_error("strip: the text is not UTF-8");
        const size_t next = at + static_cast<size_t>(read);
        if (!is_space(point)) {
            begin = std::min(begin, at);
            end = next;
        }
        at = next;
    }
    return mk_val<jinja::value_string>(begin < end ? text.substr(begin, end - begin) : "");
}

// As in the sandbox that transformers renders templates in: the engine's own makes lists of any length.
value range(const func_args& args) {
    constexpr uint64_t kMost = 100'000;
    args.ensure_count(1, 3);
    args.ensure_vals<jinja::value_int, jinja::value_int, jinja::value_int>(true, false, false);
    const auto at = [&](size_t i) { return args.get_pos(i)->as_int(); };
    const int64_t start = args.count() > 1 ? at(0) : 0, stop = args.count() > 1 ? at(1) : at(0);
    const int64_t step = args.count() > 2 ? at(2) : 1;
    if (step == 0) throw std::runtime_error("range: the step is zero");
    // Unsigned, as the distance may be beyond the signed range.
    const int64_t low = step > 0 ? start : stop, high = step > 0 ? stop : start;
    const uint64_t distance = high > low ? static_cast<uint64_t>(high) - static_cast<uint64_t>(low) : 0,
                   stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step),
                   count = distance / stride + (distance % stride != 0 ? 1 : 0);
    if (count > kMost) throw std::runtime_error("range: more than 100,000 numbers");
    auto out = mk_val<jinja::value_array>();
    for (int64_t i = 0; i < static_cast<int64_t>(count); ++i)
        out->push_back(mk_val<jinja::value_int>(start + i * step));
    return out;
}

}  // namespace

void add_functions(jinja::context& context) {
    static const std::pair<const char*, value (*)(const func_args&)> kFunctions[] = {
        {"index", index},
        {"between", between},
        {"remove_between", remove_between},
        {"capitalize", capitalize},
        {"literal", literal},
        {"strip", strip},
        {"range", range}};
    for (const auto& [name, function] : kFunctions)
        context.set_val(name, mk_val<jinja::value_func>(name, function));
}

}  // namespace refold
