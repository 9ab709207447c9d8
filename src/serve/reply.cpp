#include "serve/reply.h"

#include <httplib.h>

#include "core/json_number.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJson = "application/json";

}  // namespace

std::string dump(const Json& value) { return exact_dump(value); }

std::string server_sent(const Json& value, const char* name) {
    const std::string data = "data: " + dump(value) + "\n\n";
    return name == nullptr ? data : "event: " + std::string(name) + "\n" + data;
}

std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text.substr(0, 120)) out += c > ' ' && c < 127 ? c : '?';
    return out;
}

void send(httplib::Response& response, const Json& value) { response.set_content(dump(value) + "\n", kJson); }

void send(httplib::Response& response, const ApiError& error, const std::string& body) {
    response.status = error.status;
    if (error.retry_after > 0) response.set_header("Retry-After", std::to_string(error.retry_after));
    if (error.status == 401) response.set_header("WWW-Authenticate", "Bearer");
    response.set_content(body, kJson);
}

}  // namespace refold
