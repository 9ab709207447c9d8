// HTTP client on libcurl: one request at a time, with redirects, interrupts, and a token sent only to its
// host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace refold::hub {

struct Request {
    std::string url;
    bool head = false;
    uint64_t offset = 0;  // first byte to fetch
};

struct Response {
    long status = 0;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string text;                            // beginning of the body of an error response

    // "" when the header is missing.
    std::string header(const std::string& name) const;
    // The value of a numeric header.
    std::optional<uint64_t> number(const std::string& name) const;
    // "Content-Range: bytes 5-9/10" gives 5 and 10, "bytes */10" only the total.
    struct Range {
        std::optional<uint64_t> begin, total;
    };
    Range range() const;
};

// Receives the body of a 2xx response in chunks; `head` is the response without its body.
using Sink = std::function<void(const Response& head, std::span<const std::byte> chunk)>;

class HttpClient {
public:
    // `token` ("": none) is sent only to the host of `endpoint`, never to a host that a redirect names.
    HttpClient(std::string endpoint, std::string token, int stall_seconds);
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    const std::string& endpoint() const { return endpoint_; }
    bool has_token() const { return !token_.empty(); }

    // Follows redirects, for HEAD only those within the host, whose response describes the file. Throws
    // Transient, Error(io) for failures that a retry would not fix, Error(interrupted), and any exception of
    // `sink`.
    Response exchange(Request request, const Sink& sink = {});

private:
    struct Curl;
    Response one_exchange(const Request& request, const Sink& sink);
    std::string endpoint_, token_;
    int stall_seconds_;
    std::unique_ptr<Curl> curl_;
};

}  // namespace refold::hub
