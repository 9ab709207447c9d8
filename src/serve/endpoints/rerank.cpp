#include "serve/rerank.h"

#include "serve/endpoint.h"

namespace refold {

extern const Endpoint rerank_endpoint;
const Endpoint rerank_endpoint = {
    .method = "POST",
    .path = "/v1/rerank",
    .summary = "Documents in the order of how well they answer a query (Jina)",
    .answer = rerank,
    .body = {.example = kRerankExample, .parse = parse_only<parse_rerank_request>}};

}  // namespace refold
