// The one parser of JSON. Size and depth are bounded before a value is made, and time is linear in the size:
// nlohmann's own parser takes quadratic time for objects in order, and with a callback for all objects.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace refold {

// Real texts stay far below. The depth bounds the stack of code that walks a value recursively (copies,
// comparisons and dump() of nlohmann's values do); the number of values bounds memory.
struct JsonLimits {
    size_t bytes = size_t{128} << 20;
    size_t values = size_t{4} << 20;  // values and keys
    size_t depth = 100;
    bool unique_keys = false;  // else the last of two equal keys counts
    // Integers beyond 64 bits are kept (core/json_number.h); else they become floats.
    bool big_integers = false;
};
// For texts with an entry per token or tensor, and for results with an entry per item.
constexpr JsonLimits kLargeJson{.bytes = size_t{512} << 20, .values = size_t{16} << 20};

// Feeds the text to `reader`. Returns what is wrong with the text, with its position ("nested too deep: more
// than 100 levels at byte 7"), or "". The reader may stop by returning false; it needs no parse_error().
// `Value` is nlohmann::json or nlohmann::ordered_json, here and below.
template <typename Value>
std::string read_json(std::string_view text, nlohmann::json_sax<Value>& reader,
                      const JsonLimits& limits = JsonLimits{});

// Returns a discarded value, and sets `problem`, for a text that is not JSON or above the limits.
template <typename Value = nlohmann::json>
Value try_parse_json(std::string_view text, std::string* problem = nullptr,
                     const JsonLimits& limits = JsonLimits{});

// Throws Error(input) of `component`: "WHERE is not valid JSON: " and what is wrong.
template <typename Value = nlohmann::json>
Value parse_json(std::string_view text, const char* component, std::string_view where,
                 const JsonLimits& limits = JsonLimits{});

}  // namespace refold
