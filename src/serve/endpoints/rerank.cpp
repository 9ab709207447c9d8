#include "serve/rerank.h"

namespace refold::rerank_endpoint {

extern const Endpoint endpoint;
constexpr Endpoint endpoint =
    rerank_at("/v1/rerank", "Documents in the order of how well they answer a query (Jina)");

}  // namespace refold::rerank_endpoint
