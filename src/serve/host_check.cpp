#include "serve/host_check.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <string>

namespace refold {
namespace {

template <int Family>
bool is_address(const std::string& text) {
    in6_addr address{};
    return inet_pton(Family, text.c_str(), &address) == 1;
}

std::string lower(std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return out;
}

// ":8080", or nothing. RFC 3986 allows ":" alone.
bool is_port(std::string_view text) {
    if (text.empty()) return true;
    if (text.front() != ':') return false;
    text.remove_prefix(1);
    if (text.find_first_not_of("0123456789") != text.npos) return false;
    uint16_t number = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    return text.empty() || parsed.ec == std::errc();
}

// A name of DNS without its final dot: labels of 1 to 63 letters, digits, hyphens and underscores.
bool is_name(std::string_view text) {
    constexpr size_t kLongest = 253, kLongestLabel = 63;
    if (text.size() > kLongest) return false;
    size_t label = 0;
    for (const char c : text) {
        if (c == '.') {
            if (label == 0) return false;
            label = 0;
            continue;
        }
        const bool known = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
        if (!known || ++label > kLongestLabel) return false;
    }
    return label > 0;
}

}  // namespace

bool is_own_host(std::string_view host, std::string_view own) {
    if (host.empty()) return true;
    if (host.front() == '[') {
        const size_t end = host.find(']');
        return end != host.npos && is_port(host.substr(end + 1)) &&
               is_address<AF_INET6>(std::string(host.substr(1, end - 1)));
    }
    const size_t end = std::min(host.find(':'), host.size());
    if (!is_port(host.substr(end))) return false;
    std::string name = lower(host.substr(0, end));
    if (name.ends_with('.')) name.pop_back();
    return is_name(name) && (is_address<AF_INET>(name) || name == "localhost" ||
                             name.ends_with(".localhost") || name == lower(own));
}

}  // namespace refold
