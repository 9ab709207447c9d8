#include "serve/rerank.h"

namespace refold {

extern const Endpoint rerank_endpoint;
constexpr Endpoint rerank_endpoint =
    rerank_at("/v1/rerank", "Documents in the order of how well they answer a query (Jina)");

}  // namespace refold
