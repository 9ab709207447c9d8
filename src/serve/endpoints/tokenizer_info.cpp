#include "serve/endpoint.h"
#include "serve/reply.h"

namespace refold::tokenizer_info_endpoint {
namespace {

using Json = nlohmann::ordered_json;

// lm-evaluation-harness asks for it when it has no tokenizer of its own. "?model=NAME": of another model
// than the first.
void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const auto model = service.model(request.get_param_value("model"));
    const Tokenizer& tokenizer = model->tokenizer;
    const auto text = [&](std::optional<int32_t> token) {
        return token ? Json(tokenizer.piece(*token, true)) : Json();
    };
    send(response, {{"bos_token", text(tokenizer.bos())},
                    {"eos_token", text(tokenizer.eos())},
                    {"chat_template", model->chat.source().empty() ? Json() : Json(model->chat.source())}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "GET",
    .path = "/tokenizer_info",
    .summary = "Special tokens and the chat template",
    .answer = answer,
    .answer_example = R"({"bos_token": null, "eos_token": null, "chat_template": null})"};

}  // namespace refold::tokenizer_info_endpoint
