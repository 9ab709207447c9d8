#include "serve/endpoint.h"
#include "serve/fields.h"
#include "serve/fill_in_middle.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold::ollama_show_endpoint {
namespace {

using Json = nlohmann::ordered_json;

std::string parse(std::string_view body) {
    Fields fields(body);
    const std::string model = fields.text("model"), older = fields.text("name");
    fields.ignore("verbose");
    fields.refuse_the_rest();
    return untagged(model.empty() ? older : model);
}

// What Ollama's clients look for.
Json capabilities(const ServedModel& model) {
    Json out = Json::array();
    if (model.encoder != nullptr) out.push_back("embedding");
    if (model.scheduler == nullptr) return out;
    out.push_back("completion");
    const AnswerForm& form = model.chat.form();
    if (form.takes_tools && form.tools != nullptr) out.push_back("tools");
    if (!form.reasoning.end.empty()) out.push_back("thinking");
    if (fill_tokens(model.tokenizer)) out.push_back("insert");
    return out;
}

// Of a model that is not loaded, what is known of it: asking does not load it.
void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const ListedModel listed = service.models.listed(service.read(request, parse));
    const ServedModel* const model = listed.model.get();
    send(response, {{"modelfile", ""},
                    {"parameters", ""},
                    {"license", ""},
                    {"template", model != nullptr ? model->chat.source() : ""},
                    {"details", ollama_details(listed.info)},
                    {"model_info", gguf_keys(listed.info)},
                    {"capabilities", model != nullptr ? capabilities(*model) : Json::array()},
                    {"modified_at", utc_time(std::chrono::system_clock::from_time_t(listed.info.created))}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/api/show",
    .summary = "A model that is served (Ollama)",
    .answer = answer,
    .answer_example =
        R"({"modelfile": "", "parameters": "", "license": "", "template": "", "details": {"parent_model": "", "format": "gguf", "family": "llama",
        "families": ["llama"], "parameter_size": "134.5M", "quantization_level": ""},
        "model_info": {}, "capabilities": ["completion"], "modified_at": "2026-01-01T00:00:00Z"})",
    .error = ollama_error_body,
    .body = {.example = R"({"model": "NAME"})", .parse = parse_only<parse>}};

}  // namespace refold::ollama_show_endpoint
