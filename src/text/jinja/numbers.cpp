#include "text/jinja/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

__extension__ typedef unsigned __int128 Wide;

[[noreturn]] void fail_beyond_64_bits() {
    throw TemplateError("an integer beyond 64 bits cannot be computed with");
}

[[noreturn]] void fail_division() { throw TemplateError("division by zero"); }

int64_t floor_divided(int64_t a, int64_t b) {
    if (b == 0) fail_division();
    if (b == -1 && a == std::numeric_limits<int64_t>::min()) fail_beyond_64_bits();
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
}

int64_t modulo(int64_t a, int64_t b) {
    if (b == 0) fail_division();
    if (b == -1) return 0;
    const int64_t rest = a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double float_modulo(double a, double b) {
    if (b == 0) fail_division();
    double rest = std::fmod(a, b);
    if (rest == 0) return std::copysign(0.0, b);
    if ((b < 0) != (rest < 0)) rest += b;
    return rest;
}

double float_floor_divided(double a, double b) {
    if (b == 0) fail_division();
    const double rest = std::fmod(a, b);
    double quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(0.0, a / b);
    const double floored = std::floor(quotient);
    return quotient - floored > 0.5 ? floored + 1 : floored;
}

uint64_t magnitude(int64_t number) {
    return number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
}

// The quotient of the integers, rounded once.
double divided(int64_t a, int64_t b) {
    if (b == 0) fail_division();
    if (a == 0) return 0;
    uint64_t x = magnitude(a), y = magnitude(b);
    const int shift_x = std::countl_zero(x), shift_y = std::countl_zero(y);
    x <<= shift_x;
    y <<= shift_y;
    const Wide wide = static_cast<Wide>(x) << 63;
    const Wide quotient = wide / y | (wide % y != 0 ? 1 : 0);
    const double out = std::ldexp(static_cast<double>(quotient), shift_y - shift_x - 63);
    return (a < 0) != (b < 0) ? -out : out;
}

Value int_power(int64_t base, int64_t exponent) {
    if (exponent < 0) {
        if (base == 0) throw TemplateError("0 cannot be raised to a negative power");
        return std::pow(static_cast<double>(base), static_cast<double>(exponent));
    }
    int64_t out = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) != 0 && __builtin_mul_overflow(out, base, &out)) fail_beyond_64_bits();
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) fail_beyond_64_bits();
    }
    return out;
}

double float_power(double base, double exponent) {
    if (base == 0 && exponent < 0) throw TemplateError("0.0 cannot be raised to a negative power");
    if (base < 0 && std::isfinite(base) && std::isfinite(exponent) && std::trunc(exponent) != exponent)
        throw TemplateError("the power of a negative number is complex");
    const double out = std::pow(base, exponent);
    if (std::isinf(out) && std::isfinite(base) && std::isfinite(exponent))
        throw TemplateError("the result of a power is out of range");
    return out;
}

Value compute_integers(const std::string& operation, int64_t a, int64_t b) {
    int64_t out = 0;
    if (operation == "/") return divided(a, b);
    if (operation == "//") return floor_divided(a, b);
    if (operation == "%") return modulo(a, b);
    if (operation == "**") return int_power(a, b);
    const bool overflow = operation == "+"   ? __builtin_add_overflow(a, b, &out)
                          : operation == "-" ? __builtin_sub_overflow(a, b, &out)
                                             : __builtin_mul_overflow(a, b, &out);
    if (overflow) fail_beyond_64_bits();
    return out;
}

int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'z') return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
    return 99;
}

// Digits without the "_" that may stand between two of them; empty: there is one elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '_') {
            out += text[i];
            continue;
        }
        const bool between = i > 0 && i + 1 < text.size() &&
                             std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0 &&
                             std::isalnum(static_cast<unsigned char>(text[i + 1])) != 0;
        if (!between) return std::nullopt;
    }
    return out;
}

// Python takes any script's digits.
void check_digits_are_ascii(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const char32_t point = next_point(text, at);
        if (point >= 0x80 && is_decimal(point))
            throw TemplateError("a number with digits other than 0 to 9 is not supported");
    }
}

// Negative, 0 or positive: canonical decimals of any size.
int compare_decimals(const std::string& a, const std::string& b) {
    const bool negative_a = a.starts_with('-'), negative_b = b.starts_with('-');
    if (negative_a != negative_b) return negative_a ? -1 : 1;
    const int order = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
    return negative_a ? -order : order;
}

std::string decimal_of(const Value& integer) {
    return integer.is_big() ? integer.as_big() : std::to_string(integer.as_int());
}

}  // namespace

std::string float_repr(double number) {
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
    char buffer[32];
    const auto end = std::to_chars(buffer, std::end(buffer), number, std::chars_format::scientific).ptr;
    const std::string_view shortest(buffer, static_cast<size_t>(end - buffer));
    const size_t e = shortest.find('e');
    const bool negative = shortest.front() == '-';
    std::string digits;
    for (const char c : shortest.substr(0, e))
        if (c >= '0' && c <= '9') digits += c;
    int exponent = 0;
    const std::string_view written = shortest.substr(e + (shortest[e + 1] == '+' ? 2 : 1));
    std::from_chars(written.data(), written.data() + written.size(), exponent);
    std::string out = negative ? "-" : "";
    constexpr int kLeast = -4, kMost = 16;
    if (exponent < kLeast || exponent >= kMost) {
        out += digits[0];
        if (digits.size() > 1) out += "." + digits.substr(1);
        return out + fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
    }
    if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    const size_t whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
    return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::optional<int64_t> parse_decimal(std::string_view text) {
    int64_t out = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return out;
}

std::optional<Value> parse_int(std::string_view text, int64_t base) {
    constexpr size_t kMostDigits = 4300;  // Python's limit
    if (base != 0 && (base < 2 || base > 36)) throw TemplateError("int: the base must be 0, or 2 to 36");
    check_digits_are_ascii(text);
    std::string_view left = strip(text, nullptr, {});
    bool negative = false;
    if (!left.empty() && (left.front() == '-' || left.front() == '+')) {
        negative = left.front() == '-';
        left.remove_prefix(1);
    }
    if (left.size() > 2 && left[0] == '0') {
        const char mark = static_cast<char>(left[1] | 0x20);
        const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        if (marked != 0 && (base == 0 || base == marked)) {
            base = marked;
            left.remove_prefix(left[2] == '_' ? 3 : 2);
        }
    }
    const auto digits = without_underscores(left);
    if (!digits || digits->empty()) return std::nullopt;
    if (base == 0) {
        base = 10;
        if (digits->size() > 1 && digits->front() == '0' &&
            digits->find_first_not_of('0') != std::string::npos)
            return std::nullopt;
    }
    if (!std::ranges::all_of(*digits, [&](char c) { return digit_of(c) < base; })) return std::nullopt;
    if (base == 10) {
        if (digits->size() > kMostDigits) return std::nullopt;
        return Value::integer((negative ? "-" : "") + *digits);
    }
    int64_t out = 0;
    for (const char c : *digits)
        if (__builtin_mul_overflow(out, base, &out) || __builtin_add_overflow(out, digit_of(c), &out))
            fail_beyond_64_bits();
    return Value(negative ? -out : out);
}

std::optional<double> parse_float(std::string_view text) {
    check_digits_are_ascii(text);
    const auto number = without_underscores(strip(text, nullptr, {}));
    if (!number || number->empty()) return std::nullopt;
    std::string_view left = *number;
    const bool negative = left.front() == '-';
    if (left.front() == '-' || left.front() == '+') left.remove_prefix(1);
    const std::string word = lower(left);
    if (word == "inf" || word == "infinity")
        return negative ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (left.empty() || (std::isdigit(static_cast<unsigned char>(left.front())) == 0 && left.front() != '.'))
        return std::nullopt;
    double out = 0;
    const auto [end, problem] = std::from_chars(left.data(), left.data() + left.size(), out);
    if (end != left.data() + left.size() || problem == std::errc::invalid_argument) return std::nullopt;
    // from_chars() does not tell too large from too small.
    if (problem == std::errc::result_out_of_range) out = std::strtod(std::string(left).c_str(), nullptr);
    return negative ? -out : out;
}

Value integer_of(double number) {
    if (!std::isfinite(number)) throw TemplateError("infinity and NaN are not integers");
    return Value::integer(fmt::format("{:.0f}", std::trunc(number)));
}

double to_double(const Value& number) {
    if (number.is_float()) return number.as_float();
    if (number.is_integral()) return static_cast<double>(number.as_int());
    const double out = std::strtod(number.as_big().c_str(), nullptr);
    if (std::isinf(out)) throw TemplateError("an integer is too large for a float");
    return out;
}

std::optional<int> compare_numbers(const Value& a, const Value& b) {
    const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
    if (a.is_integral() && b.is_integral()) return order(a.as_int(), b.as_int());
    if (a.is_float() && b.is_float()) {
        if (std::isnan(a.as_float()) || std::isnan(b.as_float())) return std::nullopt;
        return order(a.as_float(), b.as_float());
    }
    if (b.is_float()) {
        const auto reversed = compare_numbers(b, a);
        return reversed ? std::optional(-*reversed) : std::nullopt;
    }
    if (!a.is_float()) return compare_decimals(decimal_of(a), decimal_of(b));
    // A float and an integer are compared exactly.
    const double number = a.as_float();
    if (std::isnan(number)) return std::nullopt;
    if (std::isinf(number)) return number < 0 ? -1 : 1;
    const double whole = std::floor(number);
    const int by_whole = compare_decimals(decimal_of(integer_of(whole)), decimal_of(b));
    return by_whole != 0 || whole == number ? by_whole : 1;
}

Value round_number(const Value& number, int64_t digits) {
    constexpr int64_t kMost = 400;
    if (!number.is_float()) {
        if (digits >= 0) return number.is_bool() ? Value(number.as_int()) : number;
        throw TemplateError("round: a negative precision of an integer is not supported");
    }
    const double value = number.as_float();
    if (!std::isfinite(value) || digits > kMost) return number;
    if (digits < 0) throw TemplateError("round: a negative precision is not supported");
    return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
}

Value compute(const std::string& operation, const Value& a, const Value& b) {
    if (a.is_integral() && b.is_integral()) return compute_integers(operation, a.as_int(), b.as_int());
    if (a.is_big() || b.is_big()) fail_beyond_64_bits();
    const double x = to_double(a), y = to_double(b);
    if (operation == "+") return x + y;
    if (operation == "-") return x - y;
    if (operation == "*") return x * y;
    if (operation == "**") return float_power(x, y);
    if (operation == "//") return float_floor_divided(x, y);
    if (operation == "%") return float_modulo(x, y);
    if (y == 0) fail_division();
    return x / y;
}

Value negate(const Value& number) {
    if (number.is_float()) return -number.as_float();
    if (number.is_big())
        return Value::integer(number.as_big().starts_with('-') ? number.as_big().substr(1)
                                                               : "-" + number.as_big());
    if (number.as_int() == std::numeric_limits<int64_t>::min()) return Value::integer("9223372036854775808");
    return -number.as_int();
}

}  // namespace refold::jinja
