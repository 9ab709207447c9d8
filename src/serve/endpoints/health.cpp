#include "serve/endpoint.h"
#include "serve/reply.h"

namespace refold::health_endpoint {
namespace {

// The process works, whatever it is busy with: /ready says whether it takes requests.
void answer(Service&, const httplib::Request&, httplib::Response& response) {
    send(response, {{"status", "ok"}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "GET",
                           .path = "/health",
                           .summary = "Whether the process answers",
                           .open = true,
                           .quick = true,
                           .answer = answer,
                           .answer_example = R"({"status": "ok"})"};

}  // namespace refold::health_endpoint
