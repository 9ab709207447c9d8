// Reranking: documents in the order of how well they answer a query, in the form of Jina's and Cohere's
// interfaces.
#pragma once

#include <httplib.h>

#include <string>
#include <string_view>
#include <vector>

#include "serve/endpoint.h"
#include "serve/service.h"

namespace refold {

struct RerankRequest {
    std::string model, query;
    std::vector<std::string> documents;
    size_t top = 0;
    bool return_documents = false, raw_scores = false;
};

constexpr const char* kRerankExample =
    R"({"query": "What is it?", "documents": ["It is a text.", "Another one."]})";

constexpr const char* kRerankAnswer =
    R"({"id": "rerank-1", "object": "list", "model": "NAME",
        "results": [{"index": 0, "relevance_score": 0.5, "document?": {"text": "It is a text."}}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1}})";

// Throws ApiError (400) that names the field and what is wrong.
RerankRequest parse_rerank_request(std::string_view body);

// Makes the response. Throws ApiError: 400 for what is wrong with the request and for a model without a head
// that scores pairs of texts, and as EncoderQueue::run() does.
void rerank(Service& service, const httplib::Request& request, httplib::Response& response);

// The endpoint at one of the addresses where clients look for it.
constexpr Endpoint rerank_at(const char* path, const char* summary) {
    return {.method = "POST",
            .path = path,
            .summary = summary,
            .answer = rerank,
            .answer_example = kRerankAnswer,
            .body = {.example = kRerankExample, .parse = parse_only<parse_rerank_request>}};
}

}  // namespace refold
