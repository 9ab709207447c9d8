#include "serve/rerank.h"

namespace refold {

// Where llama.cpp's server has it.
extern const Endpoint rerank_plain_endpoint;
constexpr Endpoint rerank_plain_endpoint =
    rerank_at("/rerank", "Documents in the order of how well they answer a query (llama.cpp's server)");

}  // namespace refold
