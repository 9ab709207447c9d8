// Reads as much of the head of an HTTP request as tells when the request is complete.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace refold {

struct HttpHead {
    size_t bytes = 0;  // of the head, including its empty line
    size_t body = 0;   // bytes that follow
    bool expects_continue = false;
    int status = 0;  // the answer to a request that is refused unread; 0: read it
    const char* problem = "";
};

// Returns nothing while the head is incomplete. A body must have a length: chunked bodies (411) and
// contradicting lengths (400) are refused, so that server and proxies agree where a request ends.
std::optional<HttpHead> scan_head(std::string_view received, size_t most_body);

}  // namespace refold
