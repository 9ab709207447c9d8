#include "core/json_number.h"

#include <algorithm>

#include "core/json_text.h"

namespace refold {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename Json>
bool has_big_integer(const Json& value) {
    if (!value.is_structured()) return value.is_binary();
    return std::any_of(value.begin(), value.end(), has_big_integer<Json>);
}

template <typename Json>
std::string plain_dump(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Json>
void write(const Json& value, std::string& out) {
    if (value.is_binary()) {
        out += big_integer_digits(value);
    } else if (!value.is_structured()) {
        out += plain_dump(value);
    } else {
        out += value.is_array() ? '[' : '{';
        bool first = true;
        for (auto entry = value.begin(); entry != value.end(); ++entry) {
            if (!std::exchange(first, false)) out += ',';
            if (value.is_object()) out += plain_dump(Json(entry.key())) + ":";
            write(*entry, out);
        }
        out += value.is_array() ? ']' : '}';
    }
}

template <typename Json>
std::string dumped(const Json& value) {
    if (!has_big_integer(value)) return plain_dump(value);
    std::string out;
    write(value, out);
    return out;
}

}  // namespace

OrderedJson parse_exact(std::string_view text) {
    return try_parse_json<OrderedJson>(text, nullptr, {.depth = 64, .big_integers = true});
}

std::string exact_dump(const nlohmann::ordered_json& value) { return dumped(value); }
std::string exact_dump(const nlohmann::json& value) { return dumped(value); }

}  // namespace refold
