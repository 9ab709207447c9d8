#include "serve/endpoint.h"
#include "serve/model_json.h"
#include "serve/reply.h"

namespace refold::models_endpoint {
namespace {

using Json = nlohmann::ordered_json;

void answer(Service& service, const httplib::Request&, httplib::Response& response) {
    Json list = Json::array();
    for (const ListedModel& model : service.models.list()) list.push_back(model_json(model));
    send(response, {{"object", "list"}, {"data", std::move(list)}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET",
    .path = "/v1/models",
    .summary = "The models that are served (OpenAI)",
    .answer = answer,
    .answer_example =
        R"({"object": "list", "data": [{"id": "NAME", "object": "model", "created": 0, "owned_by": "refold", "parent?": "NAME",
        "max_model_len?": 4096, "meta?": {"n_vocab": 0, "n_ctx": 0, "n_ctx_train?": 0, "n_embd?": 0, "n_params?": 0, "size?": 0},
        "status": {"value": "loaded"}}]})"};

}  // namespace refold::models_endpoint
