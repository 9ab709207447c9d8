// The head of an HTTP request, as far as is needed to know when all of the request has come.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace refold {

struct HttpHead {
    size_t bytes = 0;  // of the head, its empty line included
    size_t body = 0;   // bytes that follow
    bool expects_continue = false;
    int status = 0;  // what such a request is answered with at once; 0: it is to be read
    const char* problem = "";
};

// Nothing while the head is not complete. A body has a length: chunked ones (411) and contradicting lengths
// (400) are refused, so there are never two opinions about where a request ends.
std::optional<HttpHead> scan_head(std::string_view received, size_t most_body);

}  // namespace refold
