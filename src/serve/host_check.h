// Keeps web pages of other sites from a server without a key: a name that a page resolves to this machine
// (DNS rebinding) stands in the header Host.
#pragma once

#include <string_view>

namespace refold {

// Whether the value of a header Host names this machine as its own programs do: an IP address, localhost or a
// name below it, or `own`, with or without a port. True without a value, which browsers always send.
bool is_own_host(std::string_view host, std::string_view own);

}  // namespace refold
