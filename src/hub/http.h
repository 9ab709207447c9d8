// HTTP by libcurl: one request at a time, with redirects, a token that stays on its host, and interrupts.
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
    uint64_t offset = 0;  // of the first byte wanted
};

struct Response {
    long status = 0;
    std::map<std::string, std::string> headers;  // names in lower case
    std::string text;                            // how the body of an error begins

    // "" when there is none.
    std::string header(const std::string& name) const;
    // A header that is a number.
    std::optional<uint64_t> number(const std::string& name) const;
    // Of "Content-Range: bytes 5-9/10": 5 and 10; of "bytes */10": no begin.
    struct Range {
        std::optional<uint64_t> begin, total;
    };
    Range range() const;
};

// Takes a piece of the body of a 2xx answer; `head` is the answer without its body.
using Sink = std::function<void(const Response& head, std::span<const std::byte> piece)>;

class HttpClient {
public:
    // `token` ("": none) is sent to the host of `endpoint` and to no other, whatever redirects say.
    HttpClient(std::string endpoint, std::string token, int stall_seconds);
    ~HttpClient();
    HttpClient(const HttpClient&) = delete;
    HttpClient& operator=(const HttpClient&) = delete;

    const std::string& endpoint() const { return endpoint_; }
    bool has_token() const { return !token_.empty(); }

    // Follows redirects; a HEAD only those within a host, as its answer is about the file that is there.
    // Throws Transient, Error(io) for what no other attempt changes, Error(interrupted), and what `sink`
    // throws.
    Response exchange(Request request, const Sink& sink = {});

private:
    struct Curl;
    Response one_exchange(const Request& request, const Sink& sink);
    std::string endpoint_, token_;
    int stall_seconds_;
    std::unique_ptr<Curl> curl_;
};

}  // namespace refold::hub
