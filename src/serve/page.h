// The built-in page: page.html, compiled in.
#pragma once

#include <string>
#include <string_view>

namespace refold {

extern const std::string_view kPage;
// What the page may do: its own script and style, and requests to where it came from.
std::string page_security_policy();

}  // namespace refold
