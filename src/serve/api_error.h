// Errors of the HTTP interface in the shape that OpenAI's clients expect.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>

namespace refold {

struct ApiError : std::exception {
    int status = 500;
    std::string message;
    std::string param;    // the field of the request that is wrong; may be empty
    std::string code;     // "model_not_found"; may be empty
    int retry_after = 0;  // seconds; 0: not sent

    ApiError(int http_status, std::string text, std::string field = "", std::string error_code = "")
        : status(http_status),
          message(std::move(text)),
          param(std::move(field)),
          code(std::move(error_code)) {}
    const char* what() const noexcept override { return message.c_str(); }
};

class Error;

// 400 for what a request is to blame for, which `field` of it says, else 500.
ApiError api_error(const Error& error, const std::string& field = "");
// 504: a request took longer than the server's limit.
ApiError timeout_error();
// 503: the server is being stopped.
ApiError shutting_down();

// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace refold
