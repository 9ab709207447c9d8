// An endpoint of the server, one file in endpoints/: endpoints/NAME.cpp defines
//     extern const Endpoint NAME_endpoint;
//     const Endpoint NAME_endpoint = {.method = "POST", .path = "/v1/...", .summary = "...", .answer =
//     answer};
// and nothing else names it: the list of endpoints is made from the files' names
// (cmake/RefoldRegistry.cmake).
#pragma once

#include <httplib.h>

#include <span>
#include <string>
#include <string_view>

#include "serve/api_error.h"
#include "serve/service.h"

namespace refold {

// What /openapi.json tells of a body beside what its parser asks for.
struct RequestBody {
    const char* example;  // has what is required, and nothing that hides a field from the parser
    // Reads a body as the endpoint does, by Fields; throws ApiError for one that is wrong.
    void (*parse)(std::string_view body);
    const char* stream_type = nullptr;  // of answers in parts; null: there are none
};

struct Endpoint {
    const char* method;   // "GET", which answers HEAD as well, or "POST", whose body is JSON
    const char* path;     // ends with "*" where any name may follow, slashes included: only with GET
    const char* summary;  // a line for /openapi.json
    bool open = false;    // needs no API key
    // One of few that are answered while all workers are busy; the answer must be short work.
    bool quick = false;
    const char* type = "application/json";  // of the answer
    // Makes the response. May throw anything: an ApiError becomes its status and body, all else 500.
    void (*answer)(Service& service, const httplib::Request& request, httplib::Response& response);
    // An answer for /openapi.json, which tells of its fields by these: null where a value is of several
    // types, a name ends with "?" where it may be missing. Null: only the type is known.
    const char* answer_example = nullptr;
    std::string (*error)(const ApiError& error) = error_body;  // the body of a response that says so
    RequestBody body = {};                                     // of "POST"
};

std::span<const Endpoint* const> endpoints();

// `parse` of an endpoint for RequestBody.
template <auto parse>
void parse_only(std::string_view body) {
    parse(body);
}

}  // namespace refold
