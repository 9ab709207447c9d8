#include "serve/endpoint.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold::ollama_version_endpoint {
namespace {

void answer(Service&, const httplib::Request&, httplib::Response& response) {
    send(response, {{"version", kOllamaVersion}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "GET",
                           .path = "/api/version",
                           .summary = "The version of Ollama whose interface this is (Ollama)",
                           .answer = answer,
                           .answer_example = R"({"version": "0.12.6"})",
                           .error = ollama_error_body};

}  // namespace refold::ollama_version_endpoint
