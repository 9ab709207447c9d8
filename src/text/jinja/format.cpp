// Python's text % arguments and text.format().
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/budget.h"
#include "text/jinja/environment.h"
#include "text/jinja/numbers.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

constexpr int64_t kWidest = kMostText;  // a width or precision beyond it is refused at once
constexpr int64_t kMostPrecision = 1000;

// How one value is written: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
    std::string fill = " ";
    char align = 0, sign = '-', grouping = 0, type = 0;
    bool alternative = false, zero = false;
    int64_t width = 0, precision = -1;
};

[[noreturn]] void fail(const std::string& problem) { throw TemplateError("format: " + problem); }

int64_t read_number(std::string_view text, size_t& at) {
    int64_t out = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        out = out * 10 + (text[at] - '0');
        if (out > kWidest) fail("a width or precision is too large");
    }
    return out;
}

std::string padded(std::string text, const Spec& spec, char default_align) {
    const auto length = static_cast<int64_t>(code_points(text));
    if (spec.width <= length) return text;
    const int64_t padding = spec.width - length;
    check_text(static_cast<uint64_t>(padding) * spec.fill.size() + text.size());
    const char align = spec.align != 0 ? spec.align : default_align;
    int64_t before = align == '<' ? 0 : align == '^' ? padding / 2 : padding;
    std::string out;
    // "=": between the sign and the digits.
    if (align == '=') {
        const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
        const size_t prefix = text.size() > sign + 1 && text[sign] == '0' &&
                                      std::isalpha(static_cast<unsigned char>(text[sign + 1])) != 0
                                  ? 2
                                  : 0;
        out = text.substr(0, sign + prefix);
        text.erase(0, sign + prefix);
    }
    for (int64_t i = 0; i < before; ++i) out += spec.fill;
    out += text;
    for (int64_t i = before; i < padding; ++i) out += spec.fill;
    return out;
}

std::string grouped(const std::string& digits, char mark, size_t size) {
    if (mark == 0) return digits;
    const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
    std::string out;
    for (size_t i = 0; i < whole; ++i) {
        if (i > 0 && (whole - i) % size == 0) out += mark;
        out += digits[i];
    }
    return out + digits.substr(whole);
}

// A number's sign and digits together.
std::string signed_number(bool negative, std::string digits, const Spec& spec) {
    const std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
    if (spec.zero && spec.align == 0 && spec.grouping != 0 && spec.width > 0)
        fail("',' with '0' is not supported");
    return sign + std::move(digits);
}

std::string format_integer(const Value& value, const Spec& spec) {
    std::string digits = value.is_big() ? value.as_big() : std::to_string(value.as_int());
    const bool negative = digits.starts_with('-');
    if (negative) digits.erase(0, 1);
    if (spec.precision >= 0) fail("an integer takes no precision");
    const char type = spec.type == 0 ? 'd' : spec.type;
    if (type == 'c') {
        if (value.is_big() || negative || !is_printable(static_cast<char32_t>(value.as_int())))
            fail("no character has that number");
        std::string out;
        append_point(out, static_cast<char32_t>(value.as_int()));
        return padded(out, spec, '<');
    }
    if (type != 'd' && type != 'n') {
        if (value.is_big()) fail("an integer beyond 64 bits is written as a decimal only");
        const auto magnitude =
            negative ? 0 - static_cast<uint64_t>(value.as_int()) : static_cast<uint64_t>(value.as_int());
        const std::string prefix = spec.alternative ? std::string("0") + type : "";
        digits = type == 'x'   ? fmt::format("{:x}", magnitude)
                 : type == 'X' ? fmt::format("{:X}", magnitude)
                 : type == 'o' ? fmt::format("{:o}", magnitude)
                               : fmt::format("{:b}", magnitude);
        digits = prefix + grouped(digits, spec.grouping, 4);
    } else {
        digits = grouped(digits, spec.grouping, 3);
    }
    return padded(signed_number(negative, std::move(digits), spec), spec, spec.zero ? '=' : '>');
}

// "1e+16" as Python writes exponents: at least two digits, like C.
std::string general(double value, int64_t precision, char type, bool alternative) {
    const std::string format = fmt::format("%{}.{}{}", alternative ? "#" : "", precision, type);
    const int size = std::snprintf(nullptr, 0, format.c_str(), value);
    std::string out(static_cast<size_t>(size) + 1, '\0');
    std::snprintf(out.data(), out.size(), format.c_str(), value);
    out.pop_back();
    return out;
}

std::string format_float(double value, const Spec& spec) {
    if (spec.precision > kMostPrecision) fail("a precision is too large");
    const bool negative = std::signbit(value) && !std::isnan(value);
    const double magnitude = std::isnan(value) ? value : std::abs(value);
    const bool upper_case = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
    std::string digits;
    if (!std::isfinite(value)) {
        digits = std::isnan(value) ? "nan" : "inf";
        if (upper_case) digits = upper(digits);
        if (spec.type == '%') digits += '%';
    } else if (spec.type == 0 && spec.precision < 0) {
        digits = float_repr(magnitude);
    } else if (spec.type == 0) {
        fail("a precision needs a type, such as '.2f'");
    } else if (spec.type == '%') {
        digits =
            general(magnitude * 100, spec.precision < 0 ? 6 : spec.precision, 'f', spec.alternative) + "%";
    } else {
        const char type = spec.type == 'n' ? 'g' : spec.type;
        digits = general(magnitude, spec.precision < 0 ? 6 : spec.precision, type, spec.alternative);
    }
    digits = grouped(digits, spec.grouping, 3);
    return padded(signed_number(negative, std::move(digits), spec), spec, spec.zero ? '=' : '>');
}

std::string format_text(std::string text, const Spec& spec) {
    if (spec.precision >= 0) text.resize(byte_of(text, static_cast<size_t>(spec.precision)));
    return padded(std::move(text), spec, '<');
}

Spec parse_spec(std::string_view text) {
    Spec out;
    size_t at = 0;
    const auto aligns = [&](size_t i) {
        return i < text.size() && (text[i] == '<' || text[i] == '>' || text[i] == '=' || text[i] == '^');
    };
    size_t after_fill = 0;
    if (!text.empty()) next_point(text, after_fill);
    if (after_fill > 0 && aligns(after_fill)) {
        out.fill = text.substr(0, after_fill);
        out.align = text[after_fill];
        at = after_fill + 1;
    } else if (aligns(0)) {
        out.align = text[at++];
    }
    const auto take = [&](std::string_view marks) {
        return at < text.size() && marks.find(text[at]) != std::string_view::npos ? text[at++] : '\0';
    };
    if (const char sign = take("+- ")) out.sign = sign;
    if (take("z") != 0) fail("'z' is not supported");
    out.alternative = take("#") != 0;
    if (take("0") != 0) {
        out.zero = true;
        if (out.fill == " " && after_fill == 0) out.fill = "0";
        if (out.align == 0) out.fill = "0";
    }
    out.width = read_number(text, at);
    out.grouping = take(",_");
    if (take(".") != 0) {
        if (at >= text.size() || text[at] < '0' || text[at] > '9') fail("a precision is missing");
        out.precision = read_number(text, at);
    }
    if (at < text.size()) out.type = text[at++];
    if (at < text.size()) fail(fmt::format("'{}' is not a valid format", text));
    return out;
}

// format(value, spec)
std::string formatted(const Value& value, std::string_view text) {
    if (text.empty()) return to_str(value);
    check_defined(value);
    Spec spec = parse_spec(text);
    constexpr std::string_view kOfIntegers = "bcdoxXn", kOfFloats = "eEfFgG%n";
    if (value.is_text()) {
        if ((spec.type != 0 && spec.type != 's') || spec.align == '=' || spec.sign != '-' ||
            spec.alternative || spec.grouping != 0)
            fail(fmt::format("'{}' does not format a text", text));
        if (spec.zero && spec.align == 0) spec.align = '<';
        return format_text(value.str(), spec);
    }
    const bool integral = value.is_integral() || value.is_big();
    if (integral && (spec.type == 0 || kOfIntegers.find(spec.type) != std::string_view::npos)) {
        if (value.is_bool() && spec.type == 0) fail("a format of a bool is not supported");
        return format_integer(value, spec);
    }
    if ((integral || value.is_float()) &&
        (spec.type == 0 || kOfFloats.find(spec.type) != std::string_view::npos))
        return format_float(to_double(value), spec);
    fail(fmt::format("'{}' does not format a value of type {}", text, value.type_name()));
}

// Fields of text.format().
class Braces {
public:
    Braces(Environment& environment, const Arguments& arguments)
        : environment_(environment), arguments_(arguments) {}

    std::string format(std::string_view text, int level = 0) {
        constexpr int kLevels = 2;  // a field's format may have fields itself
        if (level >= kLevels) fail("fields are nested too deeply");
        std::string out;
        for (size_t at = 0; at < text.size();) {
            const char c = text[at];
            if (c != '{' && c != '}') {
                out += text[at++];
                continue;
            }
            if (at + 1 < text.size() && text[at + 1] == c) {
                out += c;
                at += 2;
                continue;
            }
            if (c == '}') fail("a single '}'");
            size_t end = at + 1, open = 1;
            for (; end < text.size(); ++end) {
                if (text[end] == '{') ++open;
                if (text[end] == '}' && --open == 0) break;
            }
            if (open > 0) fail("a '{' without a '}'");
            const std::string field = this->field(text.substr(at + 1, end - at - 1), level);
            check_text(out.size() + field.size());
            out += field;
            at = end + 1;
        }
        return out;
    }

private:
    // name!conversion:format
    std::string field(std::string_view text, int level) {
        const size_t name_end = std::min(text.find_first_of("!:"), text.size());
        Value value = lookup(text.substr(0, name_end));
        size_t at = name_end;
        if (at < text.size() && text[at] == '!') {
            const char conversion = at + 1 < text.size() ? text[at + 1] : ' ';
            if (conversion == 's') {
                value = Value::text(to_str(value));
            } else if (conversion == 'r') {
                value = Value::text(repr(value));
            } else {
                fail("only the conversions !s and !r are supported");
            }
            at += 2;
            if (at < text.size() && text[at] != ':') fail("expected ':' after a conversion");
        }
        const std::string_view spec = at < text.size() ? text.substr(at + 1) : std::string_view();
        return formatted(value, format(spec, level + 1));
    }

    Value lookup(std::string_view path) {
        const size_t end = std::min(path.find_first_of(".["), path.size());
        const std::string_view first = path.substr(0, end);
        Value value = argument(first);
        for (size_t at = end; at < path.size();) {
            if (path[at] == '.') {
                const size_t next = std::min(path.find_first_of(".[", at + 1), path.size());
                value = get_attribute(environment_, value, std::string(path.substr(at + 1, next - at - 1)));
                at = next;
                continue;
            }
            const size_t close = path.find(']', at);
            if (path[at] != '[' || close == std::string_view::npos) fail("a field's name is not valid");
            const std::string key(path.substr(at + 1, close - at - 1));
            const auto number = parse_decimal(key);
            value = get_item(environment_, value, number && *number >= 0 ? Value(*number) : Value::text(key));
            at = close + 1;
        }
        return value;
    }

    Value argument(std::string_view name) {
        const auto number = parse_decimal(name);
        if (name.empty() || (number && *number >= 0)) {
            if (name.empty() == counts_.value_or(name.empty())) {
                counts_ = name.empty();
            } else {
                fail("numbered fields do not go together with automatic ones");
            }
            const size_t i = name.empty() ? next_++ : static_cast<size_t>(*number);
            if (i >= arguments_.positional.size()) fail("there are too few arguments");
            return arguments_.positional[i];
        }
        for (const auto& [known, value] : arguments_.named)
            if (known == name) return value;
        fail(fmt::format("there is no argument '{}'", name));
    }

    Environment& environment_;
    const Arguments& arguments_;
    size_t next_ = 0;
    std::optional<bool> counts_;  // fields are numbered automatically
};

// Conversions of text % arguments.
class Percent {
public:
    Percent(std::string_view format, const Value& arguments) : format_(format), arguments_(arguments) {}

    std::string run() {
        while (at_ < format_.size()) {
            if (format_[at_] != '%') {
                out_ += format_[at_++];
                continue;
            }
            ++at_;
            conversion();
        }
        if (!arguments_.is_dict() && !arguments_.is_list() &&
            used_ < (arguments_.is_tuple() ? arguments_.items().size() : 1))
            fail("not all arguments are converted");
        return std::move(out_);
    }

private:
    Value next() {
        if (arguments_.is_tuple()) {
            if (used_ >= arguments_.items().size()) fail("there are too few arguments");
            return arguments_.items()[used_++];
        }
        if (used_++ > 0) fail("there are too few arguments");
        return arguments_;
    }
    int64_t number() {
        if (at_ < format_.size() && format_[at_] == '*') {
            ++at_;
            const Value value = next();
            if (!value.is_int()) fail("'*' needs an integer");
            if (value.as_int() > kWidest || value.as_int() < -kWidest)
                fail("a width or precision is too large");
            return value.as_int();
        }
        return read_number(format_, at_);
    }
    void conversion() {
        std::optional<Value> value;
        if (at_ < format_.size() && format_[at_] == '(') {
            const size_t close = format_.find(')', at_);
            if (close == std::string_view::npos || !arguments_.is_dict()) fail("a mapping is expected");
            const Value* found = arguments_.as_dict().find(format_.substr(at_ + 1, close - at_ - 1));
            if (found == nullptr) fail("a key is not in the mapping");
            value = *found;
            at_ = close + 1;
        }
        Spec spec;
        bool left = false;
        for (; at_ < format_.size(); ++at_) {
            const char flag = format_[at_];
            if (flag == '-') {
                left = true;
            } else if (flag == '0') {
                spec.zero = true;
            } else if (flag == '#') {
                spec.alternative = true;
            } else if (flag == '+' || (flag == ' ' && spec.sign != '+')) {
                spec.sign = flag;
            } else if (flag != ' ') {
                break;
            }
        }
        spec.width = number();
        if (spec.width < 0) {
            left = true;
            spec.width = -spec.width;
        }
        if (at_ < format_.size() && format_[at_] == '.') {
            ++at_;
            spec.precision = std::max<int64_t>(number(), 0);
        }
        while (at_ < format_.size() && (format_[at_] == 'l' || format_[at_] == 'h' || format_[at_] == 'L'))
            ++at_;
        if (at_ >= format_.size()) fail("an incomplete conversion");
        const char type = format_[at_++];
        if (type == '%') {
            out_ += '%';
            return;
        }
        spec.align = left ? '<' : spec.zero ? '=' : '>';
        const std::string text = converted(value ? *value : next(), type, spec);
        check_text(out_.size() + text.size());
        out_ += text;
    }
    static std::string converted(const Value& value, char type, Spec spec) {
        if (type == 's' || type == 'r') {
            if (spec.align == '=') spec.align = '>';
            return format_text(type == 's' ? to_str(value) : repr(value), spec);
        }
        check_defined(value);
        const bool integral = value.is_integral() || value.is_big();
        if (!integral && !value.is_float())
            fail(fmt::format("%{} needs a number, not {}", type, value.type_name()));
        if (spec.align == '=') spec.fill = "0";
        if (type == 'd' || type == 'i' || type == 'u') {
            spec.type = 'd';
            return format_integer_padded(integral ? value : integer_of(value.as_float()), spec);
        }
        if (type == 'x' || type == 'X' || type == 'o') {
            if (!integral) fail(fmt::format("%{} needs an integer", type));
            spec.type = type;
            return format_integer_padded(value, spec);
        }
        if (std::string_view("eEfFgG").find(type) == std::string_view::npos)
            fail(fmt::format("the conversion %{} is not supported", type));
        spec.type = type;
        return format_float(to_double(value), spec);
    }
    // A precision is the least number of digits.
    static std::string format_integer_padded(const Value& value, Spec spec) {
        const int64_t digits = std::exchange(spec.precision, -1);
        if (digits > kMostPrecision) fail("a precision is too large");
        if (digits < 0) return format_integer(value, spec);
        Spec bare = spec;
        bare.width = 0;
        std::string text = format_integer(value, bare);
        const size_t sign = !text.empty() && std::isalnum(static_cast<unsigned char>(text[0])) == 0 ? 1 : 0;
        const size_t prefix = spec.alternative && spec.type != 'd' ? 2 : 0;
        const auto written = static_cast<int64_t>(text.size() - sign - prefix);
        if (written < digits)
            text.insert(sign + prefix, std::string(static_cast<size_t>(digits - written), '0'));
        return padded(std::move(text), spec, '>');
    }

    const std::string_view format_;
    const Value& arguments_;
    std::string out_;
    size_t at_ = 0, used_ = 0;
};

}  // namespace

std::string format_percent(const std::string& format, const Value& arguments) {
    return Percent(format, arguments).run();
}

std::string format_braces(Environment& environment, const std::string& format, const Arguments& arguments) {
    return Braces(environment, arguments).format(format);
}

}  // namespace refold::jinja
