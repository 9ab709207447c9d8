#include "serve/api_error.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

const char* type_of(int status) {
    switch (status) {
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 429: return "rate_limit_error";
        default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

}  // namespace

ApiError api_error(const Error& error, const std::string& field) {
    switch (error.code()) {
        case ErrorCode::input:
        case ErrorCode::usage:
        case ErrorCode::unsupported: return ApiError(400, error.what(), field);
        default: return ApiError(500, error.what());
    }
}

ApiError timeout_error() {
    return ApiError(504, "the request took longer than the server allows", "", "timeout");
}

ApiError shutting_down() { return ApiError(503, "the server is shutting down", "", "shutting_down"); }

std::string error_body(const ApiError& error) {
    const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
    const Json body = {{"error",
                        {{"message", error.message},
                         {"type", type_of(error.status)},
                         {"param", or_null(error.param)},
                         {"code", or_null(error.code)}}}};
    return body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace refold
