#include "serve/embeddings.h"
#include "serve/endpoint.h"
#include "serve/ollama/fields.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold::ollama_embeddings_endpoint {
namespace {

struct EmbeddingRequest {
    std::string model, prompt;
};

EmbeddingRequest parse(std::string_view body) {
    Fields fields(body);
    EmbeddingRequest out{untagged(fields.text("model")), fields.text("prompt")};
    ignore_model_fields(fields);
    fields.refuse_the_rest();
    return out;
}

// What clients asked before there was /api/embed.
void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const EmbeddingRequest asked = service.read(request, parse);
    const auto model = service.model(asked.model);
    const ApiPrompt text = asked.prompt;
    const Embeddings made = embed(service, *model, std::span(&text, 1), "prompt", TextEncoder::TooLong::cut);
    response.set_content(fmt::format(R"({{"embedding":{}}})"
                                     "\n",
                                     json_array(made.vectors.front())),
                         "application/json");
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {.method = "POST",
                           .path = "/api/embeddings",
                           .summary = "The vector of a text (Ollama, older)",
                           .answer = answer,
                           .answer_example = R"({"embedding": [0.5]})",
                           .error = ollama_error_body,
                           .body = {.example = R"({"prompt": "A text"})", .parse = parse_only<parse>}};

}  // namespace refold::ollama_embeddings_endpoint
