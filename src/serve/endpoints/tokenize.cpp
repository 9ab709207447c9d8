#include "serve/endpoint.h"
#include "serve/fields.h"
#include "serve/reply.h"

namespace refold {
namespace {

struct TokenizeRequest {
    std::string model, text;
    bool add_special = true;
};

TokenizeRequest parse(std::string_view body) {
    Fields fields(body);
    TokenizeRequest out;
    out.model = fields.text("model");
    const std::string prompt = fields.text("prompt"), content = fields.text("content");
    const bool given = fields.find("prompt") != nullptr;
    if (!given && fields.find("content") == nullptr) refuse("prompt", "missing - give a text");
    out.text = given ? prompt : content;
    const bool special = fields.boolean("add_special", true);
    out.add_special = fields.boolean("add_special_tokens", special);
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
    send(response, {{"count", tokens.size()}, {"max_model_len", model->info.context}, {"tokens", tokens}});
}

}  // namespace

extern const Endpoint tokenize_endpoint;
const Endpoint tokenize_endpoint = {
    .method = "POST",
    .path = "/tokenize",
    .summary = "The token ids of a text; 'content' is another name of 'prompt'",
    .answer = answer,
    .body = {.example = R"({"prompt": "A text"})", .parse = parse_only<parse>}};

}  // namespace refold
