// A field of a request's body whose order matters: the properties of a JSON Schema.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace refold {

constexpr size_t kMostOrderedValues = 16384;    // values and keys
constexpr size_t kMostMessageValues = 1 << 18;  // of a conversation

// The value of a field of the body, which is a JSON object, with the keys of all objects in their order; null
// when the body has no such field. Takes linear time. Throws ApiError (400) that names the field when it has
// more than `most` values. Integers beyond 64 bits are those of core/json_number.h.
nlohmann::ordered_json ordered_field(std::string_view body, const char* field,
                                     size_t most = kMostOrderedValues);

}  // namespace refold
