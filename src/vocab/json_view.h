// Checked access to JSON of foreign files: every error names the file and the field.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace refold {

using Json = nlohmann::json;

// Throws Error(io) when the file cannot be read, Error(input) when it is not JSON or above the limits of
// core/json_text.h.
Json read_json_file(const std::filesystem::path& path);
Json parse_vocabulary_json(const std::string& text, const std::string& label);

// A value and its path in the file. The typed accessors throw Error(input) for another type.
class JsonView {
public:
    JsonView(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

    const Json& json() const { return *value_; }
    const std::string& where() const { return where_; }

    const JsonView& object() const;
    const JsonView& array() const;
    std::string string() const;
    bool boolean() const;
    int64_t integer(int64_t low, int64_t high) const;

    // A member of an object, or nothing when it is absent or null.
    std::optional<JsonView> find(const std::string& key) const;
    JsonView at(const std::string& key) const;
    // An element of an array.
    JsonView at(size_t index) const;
    size_t size() const { return value_->size(); }

    std::string string(const std::string& key, const std::string& fallback) const;
    bool boolean(const std::string& key, bool fallback) const;

    [[noreturn]] void expected(const char* what) const;

private:
    const Json* value_;
    std::string where_;
};

}  // namespace refold
