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
std::string plain_dump(const Json& value, int indent = -1) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// `line_end`: a newline and the indent around the value; empty: all is on one line.
template <typename Json>
void write(const Json& value, int indent, const std::string& line_end, std::string& out) {
    if (value.is_binary()) {
        out += big_integer_digits(value);
    } else if (!value.is_structured() || value.empty()) {
        out += plain_dump(value);
    } else {
        const std::string inner = indent < 0 ? "" : line_end + std::string(static_cast<size_t>(indent), ' ');
        out += value.is_array() ? '[' : '{';
        bool first = true;
        for (auto entry = value.begin(); entry != value.end(); ++entry) {
            if (!std::exchange(first, false)) out += ',';
            out += inner;
            if (value.is_object()) out += plain_dump(Json(entry.key())) + (indent < 0 ? ":" : ": ");
            write(*entry, indent, inner, out);
        }
        out += line_end;
        out += value.is_array() ? ']' : '}';
    }
}

template <typename Json>
std::string dumped(const Json& value, int indent) {
    if (!has_big_integer(value)) return plain_dump(value, indent);
    std::string out;
    write(value, indent, indent < 0 ? "" : "\n", out);
    return out;
}

}  // namespace

OrderedJson parse_exact(std::string_view text) {
    return try_parse_json<OrderedJson>(text, nullptr, {.depth = 64, .big_integers = true});
}

std::string exact_dump(const nlohmann::ordered_json& value, int indent) { return dumped(value, indent); }
std::string exact_dump(const nlohmann::json& value, int indent) { return dumped(value, indent); }

}  // namespace refold
