#include "serve/endpoint.h"
#include "serve/rerank.h"

namespace refold {

// Where Cohere's clients look for it.
extern const Endpoint rerank_v2_endpoint;
const Endpoint rerank_v2_endpoint = {
    .method = "POST",
    .path = "/v2/rerank",
    .summary = "Documents in the order of how well they answer a query (Cohere)",
    .answer = rerank,
    .body = {.example = kRerankExample, .parse = parse_only<parse_rerank_request>}};

}  // namespace refold
