#include "serve/rerank.h"

namespace refold::rerank_plain_endpoint {

// Where llama.cpp's server has it.
extern const Endpoint endpoint;
constexpr Endpoint endpoint =
    rerank_at("/rerank", "Documents in the order of how well they answer a query (llama.cpp's server)");

}  // namespace refold::rerank_plain_endpoint
