// Names by which a request is found again in the logs of all programs that it passes.
#pragma once

#include <string>
#include <string_view>

namespace refold {

// The client's X-Request-Id if it is well-formed - 1 to 128 letters, digits and "._:/+=-" -, else a new one.
std::string request_id(std::string_view given);

// A traceparent (W3C Trace Context) as it is, empty when it is malformed.
std::string checked_traceparent(std::string_view given);

}  // namespace refold
