// The text of a message, which clients send as it is or in parts.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "serve/fields.h"

namespace refold {

// The text at `key` of a JSON object. Throws ApiError (400) that names `field` and `where` in it.
template <typename Json>
std::string text_at(const Json& object, const char* key, const char* field, const std::string& where) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string())
        refuse(field, "{}: '{}' is missing or no text", where, key);
    return found->template get<std::string>();
}

// A text, or an array of parts of one of the types, whose texts are joined by line ends. Throws as above.
template <typename Json>
std::string content_text(const Json& content, std::initializer_list<std::string_view> types,
                         const char* field, const std::string& where) {
    if (content.is_string()) return content.template get<std::string>();
    if (!content.is_array())
        refuse(field, "{}: 'content': got {}, expected a text or an array of parts", where, shown(content));
    std::string text;
    for (const Json& part : content) {
        if (!part.is_object()) refuse(field, "{}: a content part needs a 'type'", where);
        const std::string type = text_at(part, "type", field, where);
        if (std::ranges::find(types, type) == types.end())
            refuse(field, "{}: content of type '{}' is not supported - this server takes text", where,
                   type.substr(0, 60));
        if (!text.empty()) text += '\n';
        text += text_at(part, "text", field, where);
    }
    return text;
}

}  // namespace refold
