#include "serve/openapi.h"

#include "serve/endpoint.h"
#include "serve/reply.h"

namespace refold::openapi_endpoint {
namespace {

void answer(Service& service, const httplib::Request&, httplib::Response& response) {
    send(response, openapi(service.options.version, service.keys.required()));
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "GET",
                           .path = "/openapi.json",
                           .summary = "This description of all endpoints",
                           .open = true,
                           .answer = answer};

}  // namespace refold::openapi_endpoint
