#include "serve/host_check.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

namespace refold {
namespace {

bool is_address(const std::string& text) {
    in6_addr address{};
    return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
           inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

std::string lower(std::string_view text) {
    std::string out(text);
    std::ranges::transform(out, out.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return out;
}

}  // namespace

bool is_own_host(std::string_view host, std::string_view own) {
    if (host.empty()) return true;
    std::string name;
    if (host.front() == '[') {
        name = host.substr(1, host.find(']') - 1);
    } else {
        name = lower(host.substr(0, host.rfind(':')));
        if (name.ends_with('.')) name.pop_back();
    }
    return is_address(name) || name == "localhost" || name.ends_with(".localhost") || name == lower(own);
}

}  // namespace refold
