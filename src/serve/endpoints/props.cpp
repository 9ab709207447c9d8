#include "serve/endpoint.h"
#include "serve/generation_fields.h"
#include "serve/reply.h"

namespace refold::props_endpoint {
namespace {

using Json = nlohmann::ordered_json;

// What a request gets that asks for nothing else, named as by llama.cpp's server.
Json default_params() {
    ApiRequest request;
    Fields none("{}");
    read_generation(none, request);
    const SamplingOptions& s = request.options.sampling;
    return {{"n_predict", -1},
            {"max_tokens", -1},
            {"seed", -1},
            {"temperature", s.temperature},
            {"top_k", s.top_k},
            {"top_p", s.top_p},
            {"min_p", s.min_p},
            {"typical_p", s.typical_p},
            {"mirostat", s.mirostat},
            {"mirostat_tau", s.mirostat_tau},
            {"mirostat_eta", s.mirostat_eta},
            {"repeat_penalty", s.repetition_penalty},
            {"repeat_last_n", s.penalty_last_n},
            {"presence_penalty", s.presence_penalty},
            {"frequency_penalty", s.frequency_penalty},
            {"stop", Json::array()},
            {"ignore_eos", request.options.ignore_eos},
            {"stream", request.stream}};
}

// As llama.cpp's server gives it. "?model=NAME": of another model than the first.
void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const auto model = service.model(request.get_param_value("model"));
    const Tokenizer& tokenizer = model->tokenizer;
    const auto text = [&](std::optional<int32_t> token) {
        return token ? Json(tokenizer.piece(*token, true)) : Json();
    };
    Json out = Json::object();
    if (model->scheduler != nullptr) {
        out["default_generation_settings"] = {{"n_ctx", model->info.context}, {"params", default_params()}};
        out["total_slots"] = model->scheduler->status().slots;
    } else {
        out["default_generation_settings"] = {{"n_ctx", model->info.context}, {"params", Json::object()}};
        out["total_slots"] = 1;
    }
    out["model_alias"] = out["model_path"] = model->info.name;
    out["modalities"] = {{"vision", false}, {"audio", false}};
    out["chat_template"] = model->chat.source();
    out["bos_token"] = text(tokenizer.bos());
    out["eos_token"] = text(tokenizer.eos());
    out["build_info"] = "refold-" + service.options.version;
    send(response, out);
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET",
    .path = "/props",
    .summary = "The model and its usual settings (llama.cpp's server)",
    .answer = answer,
    .answer_example = R"({"default_generation_settings": {"n_ctx": 4096, "params": {}}, "total_slots": 8,
        "model_path": "NAME", "model_alias": "NAME", "modalities": {"vision": false, "audio": false},
        "chat_template": "", "bos_token": null, "eos_token": null, "build_info": "refold-0.1.0"})"};

}  // namespace refold::props_endpoint
