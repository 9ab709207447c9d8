// The fields of a request's body, read one by one. What none of them is, is an error that names it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_number.h"
#include "serve/api_error.h"
#include "serve/body_json.h"
#include "serve/ordered_field.h"

namespace refold {

// Throws ApiError (400) for a field.
template <typename... Args>
[[noreturn]] void refuse(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
    throw ApiError(400, fmt::format("'{}': {}", field, fmt::format(format, std::forward<Args>(args)...)),
                   field);
}

// A value in a message: short, on one line.
template <typename Value>
std::string shown(const Value& value) {
    std::string text = value.is_structured() ? (value.is_array() ? "an array" : "an object")
                       : value.is_binary()   ? big_integer_digits(value)
                                             : value.dump(-1, ' ', true, Value::error_handler_t::replace);
    if (text.size() > 60) text.replace(60, std::string::npos, "...");
    return text;
}

// Notes which fields the parsers on this thread ask for, as JSON Schemas: what is read in another way than by
// the functions of Fields that check it has an empty one.
class FieldRecorder {
public:
    FieldRecorder();
    ~FieldRecorder();
    FieldRecorder(const FieldRecorder&) = delete;
    FieldRecorder& operator=(const FieldRecorder&) = delete;

    static FieldRecorder* current();  // null: there is none
    // Also those that every request may have and that change nothing.
    void note_harmless();
    void note(const std::string& field, nlohmann::ordered_json schema);
    const std::map<std::string, nlohmann::ordered_json>& fields() const { return fields_; }

private:
    FieldRecorder* const before_;
    std::map<std::string, nlohmann::ordered_json> fields_;
};

// All throw ApiError (400) that names the field and what is wrong.
class Fields {
public:
    // `body` outlives it. Throws ApiError (400) as BodyJson does, and for JSON that is no object.
    explicit Fields(std::string_view body);
    // Those of an object that is a field itself; none where it is missing or null. Throws ApiError (400) when
    // it is no object.
    Fields(Fields& outer, const char* field);

    // Whether there is such a field, which is not supported.
    bool has(const char* field) const;
    // Null when the field is missing or null.
    const BodyValue* find(const char* field);
    // The same as JSON whose objects have their keys in the client's order. Not of an inner object.
    nlohmann::ordered_json ordered(const char* field, size_t most = kMostOrderedValues);
    bool boolean(const char* field, bool otherwise);
    std::string text(const char* field);
    std::optional<int64_t> integer(const char* field, int64_t least, int64_t most);
    double number(const char* field, double otherwise, double least, double most);

    // Takes a field that changes nothing here.
    void ignore(const char* field);

    // Throws for fields that were not asked for, unless they cannot change the result or have a value that
    // asks for nothing.
    void refuse_the_rest();

private:
    std::string named(const char* field) const { return within_ + field; }

    const std::string_view source_;
    const std::string within_;  // "options.": what stands before names
    const BodyJson body_;
    const BodyValue& object_;
    std::set<std::string, std::less<>> known_;
};

std::vector<int32_t> token_ids(const BodyValue& array, const char* field);

}  // namespace refold
