#include "core/json_lines.h"

#include <algorithm>

#include "core/error.h"
#include "core/json_text.h"

namespace refold {

using Json = nlohmann::ordered_json;

void for_lines(std::string_view text, const std::function<void(std::string_view, size_t)>& use) {
    for (size_t begin = 0, number = 1; begin <= text.size(); ++number) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        use(text.substr(begin, end - begin), number);
        begin = end + 1;
    }
}

Json parse_json_line(std::string_view line, const char* component, const std::string& name, size_t number) {
    std::string reason;
    Json object = try_parse_json<Json>(line, &reason);
    if (object.is_discarded()) fail(ErrorCode::input, component, "'{}', line {}: {}", name, number, reason);
    if (!object.is_object())
        fail(ErrorCode::input, component, "'{}', line {}: got {}, expected a JSON object", name, number,
             object.type_name());
    return object;
}

}  // namespace refold
