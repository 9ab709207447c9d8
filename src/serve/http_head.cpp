#include "serve/http_head.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace refold {
namespace {

constexpr std::string_view kHeadEnd = "\r\n\r\n";

bool same(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::ranges::equal(a, b, [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}

// METHOD TARGET HTTP/1.x, without other spaces and without control characters.
bool is_request_line(std::string_view line) {
    constexpr std::string_view kVersion = " HTTP/1.";
    const size_t method = line.find(' '), version = line.rfind(' ');
    return method != line.npos && method > 0 && version > method + 1 &&
           line.substr(version).starts_with(kVersion) && line.size() == version + kVersion.size() + 1 &&
           line.find(' ', method + 1) == version &&
           std::ranges::all_of(line, [](unsigned char c) { return c >= ' ' && c != 0x7f; });
}

}  // namespace

std::optional<HttpHead> scan_head(std::string_view received, size_t most_body) {
    const size_t end = received.find(kHeadEnd);
    if (end == std::string_view::npos) return std::nullopt;
    HttpHead head;
    head.bytes = end + kHeadEnd.size();
    const auto refuse = [&](int status, const char* problem) {
        head.status = status;
        head.problem = problem;
        return head;
    };
    const std::string_view lines = received.substr(0, end + 2);
    const std::string_view request = lines.substr(0, lines.find("\r\n"));
    const std::string_view target = request.substr(std::min(request.find(' '), request.size() - 1) + 1);
    head.path = target.substr(0, target.find_first_of(" ?"));
    if (!is_request_line(request)) return refuse(400, "the first line is no request of HTTP/1");
    bool length = false, host = false;
    for (size_t begin = request.size() + 2; begin < lines.size();) {
        const size_t stop = lines.find("\r\n", begin);
        const std::string_view line = lines.substr(begin, stop - begin);
        begin = stop + 2;
        if (line.size() > kLongestHeaderLine) return refuse(431, "a header is longer than 8 KiB");
        const size_t colon = line.find(':');
        // Programs disagree about folded lines and spaces before the colon.
        if (colon == std::string_view::npos || colon == 0 || line[0] == ' ' || line[0] == '\t' ||
            line[colon - 1] == ' ' || line.find_first_of(std::string_view("\0\r\n", 3)) != line.npos)
            return refuse(400, "a malformed header line");
        const std::string_view name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
        if (same(name, "transfer-encoding")) {
            if (head.chunked || !same(value, "chunked") || request.ends_with("HTTP/1.0"))
                return refuse(400, "the only Transfer-Encoding that this server takes is 'chunked'");
            head.chunked = true;
            head.coding_begin = static_cast<size_t>(line.data() - received.data());
            head.coding_end = begin;
        }
        if (same(name, "host") && std::exchange(host, true)) return refuse(400, "more than one Host");
        if (same(name, "expect") && same(value, "100-continue")) head.expects_continue = true;
        if (!same(name, "content-length")) continue;
        const auto [last, error] = std::from_chars(value.data(), value.data() + value.size(), head.body);
        if (length || error == std::errc::invalid_argument || last != value.data() + value.size())
            return refuse(400, "a malformed Content-Length");
        length = true;
        if (error != std::errc() || head.body > most_body)
            return refuse(413, "the request's body is too large");
    }
    if (length && head.chunked) return refuse(400, "both Content-Length and Transfer-Encoding");
    const bool with_body =
        request.starts_with("POST ") || request.starts_with("PUT ") || request.starts_with("PATCH ");
    if (with_body && !length && !head.chunked)
        return refuse(411, "a body must come with a Content-Length or in chunks");
    return head;
}

}  // namespace refold
