#include "grammar/token_text.h"

#include <algorithm>
#include <string>

#include "core/text.h"

namespace refold {

std::optional<size_t> unfinished(std::string_view text) {
    const size_t at = find_invalid_utf8(text);
    if (at == std::string_view::npos) return 0;
    std::string rest(text.substr(at));
    const auto lead = static_cast<unsigned char>(rest.front());
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead < 0xC2 || lead > 0xF4 || rest.size() >= length) return std::nullopt;
    const size_t given = rest.size();
    if (given > 1) rest.resize(length, '\x80');
    return given == 1 || find_invalid_utf8(rest) == std::string::npos ? std::optional(given) : std::nullopt;
}

bool can_be_text(std::string_view piece) {
    while (!piece.empty() && (static_cast<unsigned char>(piece.front()) & 0xC0) == 0x80)
        piece.remove_prefix(1);
    return unfinished(piece).has_value();
}

bool can_be_json(std::string_view piece) {
    return std::none_of(piece.begin(), piece.end(), [](char c) {
        return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r';
    });
}

}  // namespace refold
