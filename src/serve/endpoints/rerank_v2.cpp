#include "serve/rerank.h"

namespace refold::rerank_v2_endpoint {

// Where Cohere's clients look for it.
extern const Endpoint endpoint;
constexpr Endpoint endpoint =
    rerank_at("/v2/rerank", "Documents in the order of how well they answer a query (Cohere)");

}  // namespace refold::rerank_v2_endpoint
