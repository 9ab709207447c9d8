#include "report/markup.h"

#include "core/text.h"

namespace refold {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// Passes every valid character of `text` through `append`.
template <typename Append>
std::string rewritten(std::string_view text, Append&& append) {
    std::string out;
    out.reserve(text.size() + text.size() / 8);
    while (true) {
        const size_t bad = find_invalid_utf8(text);
        for (const char c : text.substr(0, bad)) append(out, c);
        if (bad == std::string_view::npos) return out;
        out += kReplacement;
        text.remove_prefix(bad + 1);
    }
}

void append_escaped(std::string& out, char c) {
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
            if (is_control(c)) {
                out += kReplacement;
            } else {
                out += c;
            }
    }
}

}  // namespace

std::string escape(std::string_view text) { return rewritten(text, append_escaped); }

std::string escape_markdown(std::string_view text) {
    return rewritten(text, [](std::string& out, char c) {
        constexpr std::string_view kMarkup = "\\`*_[]#|~$";
        if (c == '\n' || c == '\t' || c == '\r') {
            out += ' ';
        } else if (c == '<' || c == '>' || c == '&') {
            append_escaped(out, c);
        } else if (is_control(c)) {
            out += kReplacement;
        } else {
            if (kMarkup.find(c) != std::string_view::npos) out += '\\';
            out += c;
        }
    });
}

namespace {

// `text` with only invalid characters replaced.
std::string code_text(std::string_view text) {
    return rewritten(text, [](std::string& out, char c) {
        if (c == '\r') return;
        if (is_control(c) && c != '\n' && c != '\t') {
            out += kReplacement;
        } else {
            out += c;
        }
    });
}

}  // namespace

std::string markdown_hash(std::string_view hash) {
    const bool is_hash =
        !hash.empty() && hash.find_first_not_of("0123456789abcdef") == std::string_view::npos;
    return is_hash ? "`" + std::string(hash) + "`" : escape_markdown(hash);
}

std::string markdown_code(std::string_view text, std::string_view language) {
    std::string fence = "```";
    while (text.find(fence) != std::string_view::npos) fence += '`';
    std::string out = fence;
    out += language;
    out += "\n" + code_text(text);
    if (!out.ends_with('\n')) out += '\n';
    return out + fence + "\n\n";
}

std::string shorten(std::string_view text, size_t columns) {
    size_t seen = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
        // When more than `columns` characters remain, the ellipsis takes the last column.
        if (++seen < columns) continue;
        size_t rest = 0;
        for (size_t j = i; j < text.size(); ++j)
            rest += (static_cast<unsigned char>(text[j]) & 0xC0) != 0x80 ? 1 : 0;
        return rest <= 1 ? std::string(text) : std::string(text.substr(0, i)) + "\xE2\x80\xA6";
    }
    return std::string(text);
}

}  // namespace refold
