#include "serve/rerank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "serve/answer.h"
#include "serve/embeddings.h"
#include "serve/fields.h"
#include "serve/reply.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// A text, or {"text": ...}.
std::string text_of(const BodyValue& value, const char* field) {
    const BodyValue* text = &value;
    if (value.is_object() && value.size() == 1 && value.contains("text")) text = &value["text"];
    if (!text->is_string()) refuse(field, "got {} where a text is expected", shown(*text));
    return text->get<std::string>();
}

struct Scored {
    std::vector<double> scores;  // of each document
    int64_t tokens = 0;
};

Scored score_documents(Service& service, const ServedModel& model, const RerankRequest& asked) {
    EncoderQueue& queue = model.encoding();
    if (!queue.encoder().scores())
        throw ApiError(
            400,
            fmt::format("the model '{}' makes embeddings, but has no head that scores a query with "
                        "a document - serve a reranker (sequence classification with one label)",
                        model.info.name),
            "model", "no_reranker");
    try {
        Scored out;
        std::vector<PairEncoding> pairs;
        for (const std::string& document : asked.documents) {
            service.check();
            pairs.push_back(queue.encoder().pair(asked.query, document));
            out.tokens += std::ssize(pairs.back().ids);
        }
        HttpServer::exchange().prompt_tokens = out.tokens;
        out.scores.resize(pairs.size());
        queue.run(
            pairs.size(),
            [&](TextEncoder& encoder, size_t i) {
                out.scores[i] = double{encoder.score(pairs[i])};
                queue.count_tokens(pairs[i].ids.size());
            },
            [&] { service.check_running(); });
        return out;
    } catch (const Error& error) {
        throw api_error(error, "query");
    }
}

}  // namespace

RerankRequest parse_rerank_request(std::string_view body) {
    Fields fields(body);
    RerankRequest out;
    out.model = fields.text("model");
    const BodyValue* const query = fields.find("query");
    if (query == nullptr) refuse("query", "missing - give a text");
    out.query = text_of(*query, "query");
    const BodyValue* const documents = fields.find("documents");
    if (documents == nullptr || !documents->is_array() || documents->empty())
        refuse("documents", "expected an array of at least one text");
    if (std::ssize(*documents) > kMostTexts)
        refuse("documents", "got {} texts, expected at most {}", documents->size(), kMostTexts);
    for (const BodyValue& document : *documents) out.documents.push_back(text_of(document, "documents"));
    const auto top = fields.integer("top_n", 1, INT32_MAX);
    out.top = std::min(out.documents.size(), top ? static_cast<size_t>(*top) : out.documents.size());
    out.return_documents = fields.boolean("return_documents", false);
    out.raw_scores = fields.boolean("raw_scores", false);
    fields.refuse_the_rest();
    return out;
}

void rerank(Service& service, const httplib::Request& request, httplib::Response& response) {
    const RerankRequest asked = service.read(request, parse_rerank_request);
    const auto model = service.model(asked.model);
    const Scored scored = score_documents(service, *model, asked);
    std::vector<size_t> order(asked.documents.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scored.scores[a] > scored.scores[b]; });
    Json results = Json::array();
    for (size_t i = 0; i < asked.top; ++i) {
        const double score = scored.scores[order[i]];
        Json result = {{"index", order[i]},
                       {"relevance_score", asked.raw_scores ? score : 1 / (1 + std::exp(-score))}};
        if (asked.return_documents) result["document"] = {{"text", asked.documents[order[i]]}};
        results.push_back(std::move(result));
    }
    send(response, {{"id", new_id("rerank")},
                    {"object", "list"},
                    {"model", model->info.name},
                    {"results", std::move(results)},
                    {"usage", {{"prompt_tokens", scored.tokens}, {"total_tokens", scored.tokens}}}});
}

}  // namespace refold
