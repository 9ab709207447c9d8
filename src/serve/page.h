// The built-in page: the files in page/, compiled in as one.
#pragma once

#include <string>
#include <string_view>

namespace refold {

extern const std::string_view kPage;
// The page's Content-Security-Policy: its own script and style, and requests to its own origin.
std::string page_security_policy();

}  // namespace refold
