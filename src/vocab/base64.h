// Base64 with padding (RFC 4648).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace refold {

std::string base64(std::string_view bytes);
// Nothing when `text` is not base64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace refold
