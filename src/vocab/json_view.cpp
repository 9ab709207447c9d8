#include "vocab/json_view.h"

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

// Real files stay far below this limit, which bounds the recursion of code that walks a value.
constexpr int kDeepest = 64;

}  // namespace

Json parse_json(const std::string& text, const std::string& label) {
    const Json::parser_callback_t check = [&](int depth, Json::parse_event_t, Json&) {
        if (depth > kDeepest) {
            fail(ErrorCode::input, "tokenizer", "'{}' is nested deeper than {} - the file is damaged", label,
                 kDeepest);
        }
        return true;
    };
    try {
        return Json::parse(text, check);
    } catch (const Json::exception& error) {
        fail(ErrorCode::input, "tokenizer", "'{}' is no JSON: {} - fetch the file again", label,
             error.what());
    }
}

Json read_json_file(const std::filesystem::path& path) {
    return parse_json(read_text_file(path.string()), path.string());
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
