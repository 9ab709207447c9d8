// Python's numbers. Integers beyond 64 bits are kept and written, but not computed with: an operation that
// has one, or results in one, throws TemplateError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace refold::jinja {

// repr() of a float: the shortest text that reads back as the same number.
std::string float_repr(double number);
// A decimal of 64 bits: digits with "-" or without.
std::optional<int64_t> parse_decimal(std::string_view text);
// int(text, base) and float(text); empty where Python raises ValueError.
std::optional<Value> parse_int(std::string_view text, int64_t base);
std::optional<double> parse_float(std::string_view text);
// int(number). Throws TemplateError for infinity and NaN.
Value integer_of(double number);
// float(number), of any number.
double to_double(const Value& number);
std::optional<int> compare_numbers(const Value& a, const Value& b);
// round(number, digits)
Value round_number(const Value& number, int64_t digits);

// + - * / // % ** of numbers.
Value compute(const std::string& operation, const Value& a, const Value& b);
Value negate(const Value& number);

}  // namespace refold::jinja
