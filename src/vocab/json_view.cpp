#include "vocab/json_view.h"

#include "core/error.h"
#include "core/json_text.h"
#include "core/stored_text.h"

namespace refold {
Json parse_vocabulary_json(const std::string& text, const std::string& label) {
    return parse_json(text, "tokenizer", "'" + label + "'", kLargeJson);
}

Json read_json_file(const std::filesystem::path& path) {
    return parse_vocabulary_json(read_stored_text(path.string()), path.string());
}

void JsonView::expected(const char* what) const {
    fail(ErrorCode::input, "tokenizer", "{} is {} {}, expected {} - the file is damaged", where_,
         value_->is_array() || value_->is_object() ? "an" : "a", value_->type_name(), what);
}

const JsonView& JsonView::object() const {
    if (!value_->is_object()) expected("an object");
    return *this;
}

const JsonView& JsonView::array() const {
    if (!value_->is_array()) expected("an array");
    return *this;
}

std::string JsonView::string() const {
    if (!value_->is_string()) expected("a string");
    return value_->get<std::string>();
}

bool JsonView::boolean() const {
    if (!value_->is_boolean()) expected("true or false");
    return value_->get<bool>();
}

int64_t JsonView::integer(int64_t low, int64_t high) const {
    if (!value_->is_number_integer()) expected("an integer");
    const bool huge = value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX};
    const int64_t number = huge ? 0 : value_->get<int64_t>();
    if (huge || number < low || number > high) {
        fail(ErrorCode::input, "tokenizer", "{} is {}, expected {} to {}", where_, value_->dump(), low, high);
    }
    return number;
}

std::optional<JsonView> JsonView::find(const std::string& key) const {
    object();
    const auto it = value_->find(key);
    if (it == value_->end() || it->is_null()) return std::nullopt;
    return JsonView(*it, where_ + (where_.ends_with(':') ? " " : ".") + key);
}

JsonView JsonView::at(const std::string& key) const {
    if (auto found = find(key)) return *found;
    fail(ErrorCode::input, "tokenizer", "{} has no '{}' - the file is damaged or of another kind", where_,
         key);
}

JsonView JsonView::at(size_t index) const {
    return JsonView(array().json().at(index), fmt::format("{}[{}]", where_, index));
}

std::string JsonView::string(const std::string& key, const std::string& fallback) const {
    const auto found = find(key);
    return found ? found->string() : fallback;
}

bool JsonView::boolean(const std::string& key, bool fallback) const {
    const auto found = find(key);
    return found ? found->boolean() : fallback;
}

}  // namespace refold
