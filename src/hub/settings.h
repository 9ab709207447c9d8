// The hub's environment variables.
#pragma once

#include <string>

namespace refold::hub {

// $HF_ENDPOINT without a trailing slash, or the public hub. Throws Error(usage) when it is not http(s).
std::string endpoint();
// $HF_TOKEN, else the content of $HF_TOKEN_PATH or $HF_HOME/token, else "". Throws Error(usage) when it
// cannot be a token.
std::string token();
// $HF_HUB_OFFLINE is 1, ON, YES or TRUE.
bool is_offline();

}  // namespace refold::hub
