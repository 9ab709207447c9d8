// Tolerant access to foreign JSON: missing values and values of another type give nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/error.h"
#include "model/topology.h"

namespace refold {

// The member, or null when `value` is not an object or lacks it.
inline const nlohmann::json& member(const nlohmann::json& value, const char* key) {
    static const nlohmann::json none;
    if (!value.is_object()) return none;
    const auto found = value.find(key);
    return found == value.end() ? none : *found;
}

inline std::optional<double> number_of(const nlohmann::json& value) {
    return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}
// NaN when it is not a number.
inline double number_or_nan(const nlohmann::json& value) {
    return number_of(value).value_or(std::numeric_limits<double>::quiet_NaN());
}
// A count: not negative, and below 9e18.
inline std::optional<uint64_t> count_of(const nlohmann::json& value) {
    const auto number = number_of(value);
    if (!number || !(*number >= 0 && *number < 9e18)) return std::nullopt;
    return value.is_number_unsigned() ? value.get<uint64_t>() : static_cast<uint64_t>(*number);
}
// The slot of a weight matrix by its name.
inline std::optional<Slot> matrix_of(const nlohmann::json& value) {
    try {
        const Slot slot = slot_from_name(value.is_string() ? value.get<std::string>() : "");
        return is_matrix(slot) ? std::optional(slot) : std::nullopt;
    } catch (const Error&) {
        return std::nullopt;
    }
}
inline std::string text_of(const nlohmann::json& value) {
    return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace refold
