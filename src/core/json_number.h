// Integers of any size in JSON. nlohmann's values have 64 bits, and it reads larger integers as floats. Here
// they are kept as binary values, which JSON texts cannot have, and written back as they came.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

constexpr std::uint8_t kBigIntegerSubtype = 64;

// True for the text of a JSON number without a fraction or an exponent.
inline bool is_integer_text(std::string_view number) {
    return number.find_first_not_of("-0123456789") == std::string_view::npos;
}

// `digits`: a decimal, with "-" if it is negative.
template <typename Json>
Json big_integer(std::string_view digits) {
    return Json::binary(std::vector<std::uint8_t>(digits.begin(), digits.end()), kBigIntegerSubtype);
}

template <typename Json>
std::string big_integer_digits(const Json& json) {
    const auto& binary = json.get_binary();
    return {binary.begin(), binary.end()};
}

// Parses JSON with integers of any size, keys in order; discarded when it is not valid, when it has a float
// beyond the range of double, or more than 64 levels (core/json_text.h).
nlohmann::ordered_json parse_exact(std::string_view text);

// Writes JSON, on one line or with an indent; bytes that are not UTF-8 are replaced.
std::string exact_dump(const nlohmann::ordered_json& value, int indent = -1);
std::string exact_dump(const nlohmann::json& value, int indent = -1);

}  // namespace refold
