#include "serve/endpoint.h"
#include "serve/model_json.h"
#include "serve/reply.h"

namespace refold::model_endpoint {

extern const Endpoint endpoint;

namespace {

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const auto name = request.path.substr(std::string_view(endpoint.path).size() - 1);
    send(response, model_json(service.models.listed(name)));
}

}  // namespace

const Endpoint endpoint = {
    .method = "GET",
    .path = "/v1/models/*",
    .summary = "A model that is served (OpenAI)",
    .answer = answer,
    .answer_example =
        R"({"id": "NAME", "object": "model", "created": 0, "owned_by": "refold", "parent?": "NAME",
        "max_model_len?": 4096, "meta?": {"n_vocab": 0, "n_ctx": 0, "n_ctx_train?": 0, "n_embd?": 0, "n_params?": 0, "size?": 0},
        "status": {"value": "loaded"}})"};

}  // namespace refold::model_endpoint
