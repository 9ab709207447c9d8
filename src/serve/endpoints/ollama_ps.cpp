#include "serve/endpoint.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold::ollama_ps_endpoint {
namespace {

using Json = nlohmann::ordered_json;

void answer(Service& service, const httplib::Request&, httplib::Response& response) {
    Json list = Json::array();
    for (const ListedModel& listed : service.models.list()) {
        if (!listed.model) continue;
        Json model = ollama_model(listed.info);
        model["size_vram"] = 0;
        model["context_length"] = listed.info.context;
        model["expires_at"] = "9999-12-31T23:59:59Z";
        list.push_back(std::move(model));
    }
    send(response, {{"models", std::move(list)}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET",
    .path = "/api/ps",
    .summary = "The models that are loaded (Ollama)",
    .answer = answer,
    .answer_example =
        R"({"models": [{"name": "NAME", "model": "NAME", "size": 0, "digest": "", "details": {"parent_model": "", "format": "gguf", "family": "llama",
        "families": ["llama"], "parameter_size": "134.5M", "quantization_level": ""}, "size_vram": 0,
        "context_length": 4096, "expires_at": "9999-12-31T23:59:59Z"}]})",
    .error = ollama_error_body};

}  // namespace refold::ollama_ps_endpoint
