#include "serve/trace_headers.h"

#include <algorithm>

#include "serve/answer.h"

namespace refold {
namespace {

bool is_hex(std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool only_zeros(std::string_view text) { return text.find_first_not_of('0') == text.npos; }

}  // namespace

std::string request_id(std::string_view given) {
    constexpr size_t kLongest = 128;
    constexpr std::string_view kOther = "._:/+=-";
    const bool well_formed =
        !given.empty() && given.size() <= kLongest && std::ranges::all_of(given, [&](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                   kOther.find(c) != kOther.npos;
        });
    return well_formed ? std::string(given) : new_id("req");
}

std::string checked_traceparent(std::string_view given) {
    // "00-" trace id "-" parent id "-" flags; later versions may go on.
    constexpr size_t kSize = 55;
    if (given.size() < kSize || given.size() > 2 * kSize) return "";
    const std::string_view version = given.substr(0, 2), trace = given.substr(3, 32),
                           parent = given.substr(36, 16), flags = given.substr(53, 2);
    for (const std::string_view part : {version, trace, parent, flags})
        if (!is_hex(part)) return "";
    if (given[2] != '-' || given[35] != '-' || given[52] != '-') return "";
    if (version == "ff" || only_zeros(trace) || only_zeros(parent)) return "";
    const std::string_view rest = given.substr(kSize);
    if (!rest.empty() && (version == "00" || rest.front() != '-')) return "";
    if (!std::ranges::all_of(rest, [](char c) { return c > ' ' && c < 127; })) return "";
    return std::string(given);
}

}  // namespace refold
