#include "serve/endpoint.h"
#include "serve/prompt_field.h"
#include "serve/reply.h"

namespace refold::detokenize_endpoint {
namespace {

struct DetokenizeRequest {
    std::string model;
    std::vector<int32_t> tokens;
};

DetokenizeRequest parse(std::string_view body) {
    Fields fields(body);
    DetokenizeRequest out;
    out.model = fields.text("model");
    const BodyValue* tokens = fields.find("tokens");
    if (tokens == nullptr || !tokens->is_array()) refuse("tokens", "expected an array of token ids");
    out.tokens = token_ids(*tokens, "tokens");
    fields.refuse_the_rest();
    return out;
}

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const DetokenizeRequest asked = service.read(request, parse);
    const auto model = service.model(asked.model);
    check_ids(asked.tokens, model->info.n_vocab, "tokens");
    const std::string text = model->tokenizer.decode(asked.tokens, true);
    send(response, {{"prompt", text}, {"content", text}});  // vLLM's name, and llama.cpp's
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "POST",
                           .path = "/detokenize",
                           .summary = "The text of token ids (vLLM, llama.cpp's server)",
                           .answer = answer,
                           .answer_example = R"({"prompt": "A text", "content": "A text"})",
                           .body = {.example = R"({"tokens": [1, 2]})", .parse = parse_only<parse>}};

}  // namespace refold::detokenize_endpoint
