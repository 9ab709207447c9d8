#include "hub/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "hub/hub.h"

namespace refold {
namespace {

bool is_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// The hub's rules for the two halves of a repository's name.
bool is_repo_part(std::string_view part) {
    return hub::is_plain_name(part) && part.size() <= 96 && part.front() != '-' && part.back() != '-' &&
           part.back() != '.' && part.find("--") == part.npos && part.find("..") == part.npos;
}

}  // namespace

namespace hub {

bool is_safe_path(std::string_view path) {
    if (std::ranges::any_of(path, is_control)) return false;
    for (size_t at = 0;;) {
        const size_t slash = path.find('/', at);
        const std::string_view part = path.substr(at, slash - at);
        if (part.empty() || part == "." || part == "..") return false;
        if (slash == path.npos) return true;
        at = slash + 1;
    }
}

bool is_hex(std::string_view text, size_t digits) {
    return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_plain_name(std::string_view text) {
    return !text.empty() && text.front() != '.' && text.size() <= 200 &&
           std::ranges::all_of(text, [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; });
}

std::string percent_encode(std::string_view text, std::string_view keep) {
    std::string out;
    for (const char c : text) {
        if (is_alnum(c) || std::string_view("-._~").find(c) != std::string_view::npos ||
            keep.find(c) != keep.npos) {
            out += c;
        } else {
            out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
        }
    }
    return out;
}

std::string quotable(std::string_view text) {
    constexpr size_t kLength = 200;
    std::string out(text.substr(0, kLength));
    std::ranges::replace_if(
        out, [](char c) { return is_control(c) || (c & 0x80) != 0; }, ' ');
    return text.size() > kLength ? out + "..." : out;
}

}  // namespace hub

std::optional<HubSpec> parse_hub_spec(const std::string& text) {
    HubSpec spec;
    // A revision contains no ":", a repository neither ":" nor "@".
    const size_t colon = text.find(':');
    std::string id = text.substr(0, colon);
    if (colon != text.npos) {
        spec.file_or_quant = text.substr(colon + 1);
        if (!hub::is_safe_path(spec.file_or_quant)) return {};
    }
    if (const size_t at = id.find('@'); at != id.npos) {
        spec.revision = id.substr(at + 1);
        id.resize(at);
        if (!hub::is_safe_path(spec.revision)) return {};
    }
    const size_t slash = id.find('/');
    if (slash == id.npos || !is_repo_part(id.substr(0, slash)) || !is_repo_part(id.substr(slash + 1)))
        return {};
    spec.repo = id;
    return spec;
}

}  // namespace refold
