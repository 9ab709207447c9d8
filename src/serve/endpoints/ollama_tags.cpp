#include "serve/endpoint.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold::ollama_tags_endpoint {
namespace {

using Json = nlohmann::ordered_json;

void answer(Service& service, const httplib::Request&, httplib::Response& response) {
    Json list = Json::array();
    for (const ListedModel& listed : service.models.list()) {
        Json model = ollama_model(listed.info);
        model["modified_at"] = utc_time(std::chrono::system_clock::from_time_t(listed.info.created));
        list.push_back(std::move(model));
    }
    send(response, {{"models", std::move(list)}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET",
    .path = "/api/tags",
    .summary = "The models that are served (Ollama)",
    .answer = answer,
    .answer_example =
        R"({"models": [{"name": "NAME", "model": "NAME", "size": 0, "digest": "", "details": {"parent_model": "", "format": "gguf", "family": "llama",
        "families": ["llama"], "parameter_size": "134.5M", "quantization_level": ""}, "modified_at": "2026-01-01T00:00:00Z"}]})",
    .error = ollama_error_body};

}  // namespace refold::ollama_tags_endpoint
