#include "serve/embeddings.h"
#include "serve/endpoint.h"
#include "serve/ollama/fields.h"
#include "serve/ollama/model.h"
#include "serve/reply.h"

namespace refold::ollama_embed_endpoint {
namespace {

struct EmbedRequest {
    std::string model;
    std::vector<ApiPrompt> texts;
    bool truncate = true;
    std::optional<int64_t> dimensions;
};

EmbedRequest parse(std::string_view body) {
    Fields fields(body);
    EmbedRequest out;
    out.model = untagged(fields.text("model"));
    out.texts = read_prompts(fields, "input", kMostTexts);
    out.truncate = fields.boolean("truncate", true);
    out.dimensions = fields.integer("dimensions", 1, INT32_MAX);
    ignore_model_fields(fields);
    fields.refuse_the_rest();
    return out;
}

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const EmbedRequest asked = service.read(request, parse);
    const auto model = service.model(asked.model);
    check_dimensions(asked.dimensions, *model);
    const Embeddings made = embed(service, *model, asked.texts, "input",
                                  asked.truncate ? TextEncoder::TooLong::cut : TextEncoder::TooLong::kept);
    std::string vectors;
    for (const std::vector<float>& vector : made.vectors)
        vectors += (vectors.empty() ? "" : ",") + json_array(vector);
    response.set_content(
        fmt::format(
            R"({{"model":{},"embeddings":[{}],"total_duration":{},"load_duration":0,"prompt_eval_count":{}}})"
            "\n",
            dump(model->info.name), vectors, since_arrival(), made.tokens),
        "application/json");
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/api/embed",
    .summary = "Vectors of texts (Ollama)",
    .answer = answer,
    .answer_example = R"({"model": "NAME", "embeddings": [[0.5]], "total_duration": 0, "load_duration": 0,
        "prompt_eval_count": 1})",
    .error = ollama_error_body,
    .body = {.example = R"({"input": "A text"})", .parse = parse_only<parse>}};

}  // namespace refold::ollama_embed_endpoint
