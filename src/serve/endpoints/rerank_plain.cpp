#include "serve/endpoint.h"
#include "serve/rerank.h"

namespace refold {

// Where llama.cpp's server has it.
extern const Endpoint rerank_plain_endpoint;
const Endpoint rerank_plain_endpoint = {
    .method = "POST",
    .path = "/rerank",
    .summary = "Documents in the order of how well they answer a query (llama.cpp's server)",
    .answer = rerank,
    .body = {.example = kRerankExample, .parse = parse_only<parse_rerank_request>}};

}  // namespace refold
