// The functions of templates: Jinja's, those of transformers for chat templates, and refold's own for tasks.
// text/jinja.h lists the latter.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <ctime>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/numbers.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

constexpr int kDeepest = 64;  // levels of a literal

// Parses Python literals: the output of repr() for lists and mappings of texts, numbers, True, False and
// None.
class LiteralParser {
public:
    explicit LiteralParser(const std::string& text) : text_(text) {}

    Value parse() {
        Value parsed = next(0);
        skip_space();
        if (at_ != text_.size()) fail_here();
        return parsed;
    }

private:
    [[noreturn]] void fail_here() const {
        throw TemplateError("literal: not a Python value at byte " + std::to_string(at_));
    }
    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    }
    bool take(std::string_view expected) {
        if (text_.compare(at_, expected.size(), expected) != 0) return false;
        at_ += expected.size();
        return true;
    }

    Value next(int depth) {
        if (depth > kDeepest) fail_here();
        skip_space();
        if (take("True")) return true;
        if (take("False")) return false;
        if (take("None")) return {};
        if (take("[")) return list(depth);
        if (take("{")) return mapping(depth);
        if (at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"')) return Value::text(string());
        const size_t end = std::min(text_.find_first_not_of("0123456789-", at_), text_.size());
        const auto number = parse_decimal(std::string_view(text_).substr(at_, end - at_));
        if (!number) fail_here();
        at_ = end;
        return *number;
    }

    Value list(int depth) {
        Items entries;
        for (;;) {
            skip_space();
            if (take("]")) return Value::list(std::move(entries));
            entries.push_back(next(depth + 1));
            skip_space();
            if (!take(",") && text_.compare(at_, 1, "]") != 0) fail_here();
        }
    }

    Value mapping(int depth) {
        std::vector<Entry> entries;
        for (;;) {
            skip_space();
            if (take("}")) return make_dict(std::move(entries));
            if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail_here();
            Value key = Value::text(string());
            skip_space();
            if (!take(":")) fail_here();
            entries.push_back({std::move(key), next(depth + 1)});
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

Value literal(Call& call) { return LiteralParser(call.text(0)).parse(); }

Value index(Call& call) {
    const Value &list = call.value(0), &item = call.value(1);
    check_defined(list);
    if (list.is_text()) {
        check_search(list.str(), call.text(1));
        const size_t at = list.str().find(call.text(1));
        if (at != std::string::npos)
            return static_cast<int64_t>(code_points(std::string_view(list.str()).substr(0, at)));
    } else if (list.has_items()) {
        for (size_t i = 0; i < list.items().size(); ++i)
            if (equal(list.items()[i], item)) return static_cast<int64_t>(i);
    } else {
        call.fail(fmt::format("{} is neither a list nor a text", list.type_name()));
    }
    call.fail(fmt::format("{} is not in {}", repr(item), repr(list)));
}

Value between(Call& call) {
    const std::string &text = call.text(0), &begin = call.text(1), &end = call.text(2);
    check_search(text, begin);
    check_search(text, end);
    size_t from = text.find(begin);
    if (from == std::string::npos) call.fail(fmt::format("the text has no '{}'", begin));
    from += begin.size();
    const size_t to = end.empty() ? text.size() : text.rfind(end);
    if (to == std::string::npos || to < from)
        call.fail(fmt::format("the text has no '{}' after '{}'", end, begin));
    return Value::text(text.substr(from, to - from));
}

Value remove_between(Call& call) {
    const std::string &text = call.text(0), &begin = call.text(1), &end = call.text(2);
    if (begin.empty() || end.empty()) call.fail("an empty mark");
    check_search(text, begin);
    check_search(text, end);
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
    return Value::text(out + text.substr(at));
}

Value range(Call& call) {
    const bool from_zero = !call.has(1);
    return make_range(from_zero ? 0 : call.integer(0), call.integer(from_zero ? 0 : 1),
                      call.integer_or(2, 1));
}

std::vector<Entry> entries_of(Call& call) {
    std::vector<Entry> entries;
    if (call.given.positional.size() > 1) call.fail("expected at most one argument");
    for (const Value& from : call.given.positional) {
        if (from.is_dict()) {
            entries = from.as_dict().entries();
            continue;
        }
        for (const Value& pair : to_items(from)) {
            Items parts = to_items(pair);
            if (parts.size() != 2) call.fail("expected pairs of a key and a value");
            entries.push_back({std::move(parts[0]), std::move(parts[1])});
        }
    }
    for (const auto& [name, value] : call.given.named) entries.push_back({Value::text(name), value});
    return entries;
}

Value dict(Call& call) { return make_dict(entries_of(call)); }

Value make_namespace(Call& call) {
    const auto out = std::make_shared<Namespace>();
    check_memory(sizeof(Namespace));
    call.environment.namespaces.push_back(out);
    const Value members = make_dict(entries_of(call));
    for (const auto& [name, value] : members.as_dict().entries()) {
        if (!name.is_text()) call.fail("the names of members must be texts");
        out->set(name.str(), value);
    }
    return out;
}

Value cycler(Call& call) {
    if (!call.given.named.empty()) call.fail("unexpected keyword argument");
    return make_cycler(call.environment, call.given.positional);
}

Value joiner(Call& call) { return make_joiner(call.value_or(0, Value::text(", "))); }

Value raise_exception(Call& call) { throw TemplateError(to_str(call.value(0))); }

// datetime.now().strftime(format)
Value strftime_now(Call& call) {
    constexpr size_t kLongest = 1 << 16;
    const auto now = std::chrono::system_clock::now();
    const auto micros =
        std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
    std::string format;
    const std::string& given = call.text(0);
    for (size_t i = 0; i < given.size(); ++i) {
        if (given[i] == '%' && i + 1 < given.size() && given[i + 1] == 'f') {
            format += fmt::format("{:06}", micros);
            ++i;
        } else if (given[i] == '%' && i + 1 < given.size() &&
                   (given[i + 1] == 'z' || given[i + 1] == 'Z' || given[i + 1] == ':')) {
            ++i;  // a time without a zone, as now() gives
            if (given[i] == ':' && i + 1 < given.size()) ++i;
        } else {
            format += given[i];
            if (given[i] == '%' && i + 1 < given.size()) format += given[++i];
        }
    }
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    std::tm local{};
    localtime_r(&seconds, &local);
    std::string out(kLongest, '\0');
    format += ' ';  // an empty result is told from one that does not fit
    const size_t size = std::strftime(out.data(), out.size(), format.c_str(), &local);
    if (size == 0) call.fail("the result is too long");
    out.resize(size - 1);
    return Value::text(std::move(out));
}

}  // namespace

const Definitions& chat_functions() {
    static const Definitions kFunctions = {
        {"cycler", {cycler, {}, 0, true}},
        {"dict", {dict, {}, 0, true}},
        {"joiner", {joiner, {"sep"}}},
        {"namespace", {make_namespace, {}, 0, true}},
        {"raise_exception", {raise_exception, {"message"}, 1}},
        {"range", {range, {"/start", "/stop", "/step"}, 1}},
        {"strftime_now", {strftime_now, {"format"}, 1}},
    };
    return kFunctions;
}

const Definitions& task_functions() {
    static const Definitions kFunctions = [] {
        Definitions out = chat_functions();
        out.insert(
            out.end(),
            {{"between", {between, {"/text", "/begin", "/end"}, 3}},
             {"capitalize", {[](Call& call) { return Value::text(capitalize(call.text(0))); }, {"/text"}, 1}},
             {"index", {index, {"/list", "/item"}, 2}},
             {"literal", {literal, {"/text"}, 1}},
             {"remove_between", {remove_between, {"/text", "/begin", "/end"}, 3}},
             {"strip", {[](Call& call) { return strip_text(call.text(0), {}, {}); }, {"/text"}, 1}}});
        return out;
    }();
    return kFunctions;
}

}  // namespace refold::jinja
