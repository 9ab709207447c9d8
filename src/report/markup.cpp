#include "report/markup.h"

#include "core/text.h"

namespace refold {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

static void append_escaped(std::string& out, std::string_view valid) {
    for (const char c : valid) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            case '\'': out += "&#39;"; break;
            case '\n':
            case '\t': out += c; break;
            case '\r': break;
            default:
                if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
                    out += kReplacement;
                } else {
                    out += c;
                }
        }
    }
}

std::string escape(std::string_view text) {
    std::string out;
    out.reserve(text.size() + text.size() / 8);
    while (true) {
        const size_t bad = find_invalid_utf8(text);
        append_escaped(out, text.substr(0, bad));
        if (bad == std::string_view::npos) return out;
        out += kReplacement;
        text.remove_prefix(bad + 1);
    }
}

std::string shorten(std::string_view text, size_t columns) {
    size_t seen = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
        // The ellipsis takes the last column, when more than one character would be lost.
        if (++seen < columns) continue;
        size_t rest = 0;
        for (size_t j = i; j < text.size(); ++j)
            rest += (static_cast<unsigned char>(text[j]) & 0xC0) != 0x80 ? 1 : 0;
        return rest <= 1 ? std::string(text) : std::string(text.substr(0, i)) + "\xE2\x80\xA6";
    }
    return std::string(text);
}

}  // namespace refold
