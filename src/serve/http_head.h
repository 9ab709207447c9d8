// Reads as much of the head of an HTTP request as tells when the request is complete.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace refold {

struct HttpHead {
    size_t bytes = 0;                         // of the head, including its empty line
    size_t body = 0;                          // bytes that follow
    bool chunked = false;                     // the body comes in chunks instead, its length unknown
    size_t coding_begin = 0, coding_end = 0;  // the line that says so
    std::string_view path;                    // without a query
    bool expects_continue = false;
    int status = 0;  // the answer to a request that is refused unread; 0: read it
    const char* problem = "";
};

// cpp-httplib takes no longer lines.
constexpr size_t kLongestHeaderLine = 8 << 10;

// Returns nothing while the head is incomplete; the path is a part of `received`. What tells the end of a
// body must be clear, so that server and proxies agree on it: a body without a length and not in chunks (411)
// and contradicting lengths (400) are refused.
std::optional<HttpHead> scan_head(std::string_view received, size_t most_body);

}  // namespace refold
