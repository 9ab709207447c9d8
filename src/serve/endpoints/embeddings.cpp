#include "serve/embeddings.h"

#include "serve/endpoint.h"
#include "serve/fields.h"
#include "serve/reply.h"
#include "vocab/base64.h"

namespace refold::embeddings_endpoint {
namespace {

struct EmbeddingRequest {
    std::string model;
    std::vector<ApiPrompt> texts;
    bool base64 = false;
    std::optional<int64_t> dimensions;
};

EmbeddingRequest parse(std::string_view body) {
    Fields fields(body);
    EmbeddingRequest out;
    out.model = fields.text("model");
    out.texts = read_prompts(fields, "input", kMostTexts);
    const std::string encoding = fields.text("encoding_format");
    out.base64 = encoding == "base64";
    if (!out.base64 && !encoding.empty() && encoding != "float")
        refuse("encoding_format", "got '{}', expected float or base64", encoding.substr(0, 60));
    out.dimensions = fields.integer("dimensions", 1, INT32_MAX);
    fields.refuse_the_rest();
    return out;
}

std::string in_base64(const std::vector<float>& values) {
    static_assert(std::endian::native == std::endian::little);
    const auto* const bytes = reinterpret_cast<const char*>(values.data());
    return "\"" + base64({bytes, values.size() * sizeof(float)}) + "\"";
}

void answer(Service& service, const httplib::Request& request, httplib::Response& response) {
    const EmbeddingRequest asked = service.read(request, parse);
    const auto model = service.model(asked.model);
    check_dimensions(asked.dimensions, *model);
    const Embeddings made = embed(service, *model, asked.texts, "input");
    // Written here: as values of nlohmann's, numbers take several times the memory.
    std::string data;
    for (size_t i = 0; i < made.vectors.size(); ++i) {
        const std::vector<float>& vector = made.vectors[i];
        data += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i > 0 ? "," : "", i,
                            asked.base64 ? in_base64(vector) : json_array(vector));
    }
    response.set_content(
        fmt::format(
            R"({{"object":"list","data":[{}],"model":{},"usage":{{"prompt_tokens":{},"total_tokens":{}}}}})"
            "\n",
            data, dump(model->info.name), made.tokens, made.tokens),
        "application/json");
}

}  // namespace

extern const Endpoint endpoint;
const Endpoint endpoint = {
    .method = "POST",
    .path = "/v1/embeddings",
    .summary = "Vectors of texts (OpenAI)",
    .answer = answer,
    .answer_example =
        R"({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": null}], "model": "NAME",
        "usage": {"prompt_tokens": 1, "total_tokens": 1}})",
    .body = {.example = R"({"input": "A text"})", .parse = parse_only<parse>}};

}  // namespace refold::embeddings_endpoint
