#include "serve/endpoint.h"
#include "serve/fields.h"
#include "serve/logprobs_json.h"
#include "serve/reply.h"

namespace refold::tokenize_endpoint {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeRequest {
    std::string model, text;
    bool add_special = true, with_pieces = false;
};

TokenizeRequest parse(std::string_view body) {
    Fields fields(body);
    TokenizeRequest out;
    out.model = fields.text("model");
    // vLLM's clients give a prompt, which has special tokens unless they say no; those of llama.cpp's server
    // give content, which has them where they say so.
    const std::string prompt = fields.text("prompt"), content = fields.text("content");
    const bool vllm = fields.has("prompt");
    if (vllm == fields.has("content")) refuse("prompt", "give a text as either 'prompt' or 'content'");
    out.text = vllm ? prompt : content;
    const bool special = fields.boolean("add_special", vllm);
    out.add_special = fields.boolean("add_special_tokens", special);
    out.with_pieces = fields.boolean("with_pieces", false);
    fields.refuse_the_rest();
    return out;
}

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const TokenizeRequest asked = service.read(request, parse);
    const auto model = service.model(asked.model);
    // Documents that are longer than the context are cut into tokens, too.
    constexpr size_t kMost = 1 << 20;
    if (asked.text.size() > kMost)
        throw ApiError(400,
                       fmt::format("got a text of {} bytes, expected at most {}", asked.text.size(), kMost),
                       "prompt");
    const std::vector<int32_t> tokens = model->tokenizer.encode(asked.text, asked.add_special, true);
    Json shown = tokens;
    for (size_t i = 0; asked.with_pieces && i < tokens.size(); ++i)
        shown[i] = {{"id", tokens[i]}, {"piece", token_text(model->tokenizer, tokens[i])}};
    send(response,
         {{"count", tokens.size()}, {"max_model_len", model->info.context}, {"tokens", std::move(shown)}});
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "POST",
                           .path = "/tokenize",
                           .summary = "The token ids of a text; 'content' is another name of 'prompt'",
                           .answer = answer,
                           .answer_example = R"({"count": 1, "max_model_len": 4096, "tokens": [null]})",
                           .body = {.example = R"({"prompt": "A text"})", .parse = parse_only<parse>}};

}  // namespace refold::tokenize_endpoint
