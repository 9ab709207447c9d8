// Writing responses.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "serve/api_error.h"

namespace httplib {
struct Response;
}

namespace refold {

// JSON on one line; what is not UTF-8 becomes U+FFFD.
std::string dump(const nlohmann::ordered_json& value);
// An event of a stream: "data: ..."; with a name where there is one.
std::string server_sent(const nlohmann::ordered_json& value, const char* name = nullptr);
// A client's text on one line: at most 120 characters, printable ones only.
std::string printable(const std::string& text);

void send(httplib::Response& response, const nlohmann::ordered_json& value);
// `body`: error_body() or another interface's.
void send(httplib::Response& response, const ApiError& error, const std::string& body);

}  // namespace refold
