// The costs of a model, from its topology and shapes alone.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace refold {

struct Cost {
    uint64_t parameters = 0;          // elements of stored tensors
    uint64_t active_parameters = 0;   // of them, those that one token reads: of experts only the part it uses
    uint64_t bytes = 0;               // of stored tensors, on disk and resident: each tensor once
    uint64_t kv_bytes_per_token = 0;  // all layers together, at the given KV element size
    uint64_t flops_per_token = 0;     // multiply-adds x 2 of all linear maps of one token, head included
    // per token of context: 4 x heads x head_dim in each layer (scores and values)
    uint64_t attention_flops_per_context_token = 0;
};

struct Accounting {
    Cost model;
    Cost dense;  // the same layers without sharing
};

Accounting account(const Model& model, size_t kv_element_bytes = 2);

// Bytes of the KV cache for `context` tokens when the caches of evictable() layers keep `rows` rows; without
// the prefix.
uint64_t kv_bytes(const Model& model, int64_t context, int64_t rows, size_t kv_element_bytes = 2);

}  // namespace refold
