#include "tasks/python_text.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "core/json_text.h"

namespace refold {
namespace {

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

// Bytes of the white space character at the start of `text`; 0: none.
size_t space_at(std::string_view text) {
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
    const unsigned first = byte(0);
    if (first < 0x80)
        return !text.empty() && (first == ' ' || (first >= 9 && first <= 13) || (first >= 28 && first <= 31))
                   ? 1
                   : 0;
    if (first == 0xC2) return byte(1) == 0x85 || byte(1) == 0xA0 ? 2 : 0;
    if ((first & 0xF0U) != 0xE0) return 0;
    const unsigned point = ((first & 0x0FU) << 12U) | ((byte(1) & 0x3FU) << 6U) | (byte(2) & 0x3FU);
    const bool space = point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
                       point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
    return space ? 3 : 0;
}

}  // namespace

size_t code_points(std::string_view text) {
    return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), continues));
}

std::string_view rstrip(std::string_view text) {
    while (!text.empty()) {
        size_t last = text.size() - 1;
        while (last > 0 && continues(text[last])) --last;
        if (space_at(text.substr(last)) == 0) break;
        text = text.substr(0, last);
    }
    return text;
}

std::string_view strip(std::string_view text) {
    text = rstrip(text);
    while (const size_t bytes = space_at(text)) text.remove_prefix(bytes);
    return text;
}

std::vector<std::string_view> split_words(std::string_view text) {
    std::vector<std::string_view> words;
    size_t begin = 0;
    for (size_t i = 0; i <= text.size();) {
        const size_t space = i < text.size() ? space_at(text.substr(i)) : 1;
        if (space == 0) {
            ++i;
            continue;
        }
        if (i > begin) words.push_back(text.substr(begin, i - begin));
        i += space;
        begin = i;
    }
    return words;
}

std::string valid_utf8(const std::string& bytes) {
    using nlohmann::json;
    return parse_json(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace), "tasks", "a text")
        .get<std::string>();
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

}  // namespace refold
