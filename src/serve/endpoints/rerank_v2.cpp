#include "serve/rerank.h"

namespace refold {

// Where Cohere's clients look for it.
extern const Endpoint rerank_v2_endpoint;
constexpr Endpoint rerank_v2_endpoint =
    rerank_at("/v2/rerank", "Documents in the order of how well they answer a query (Cohere)");

}  // namespace refold
