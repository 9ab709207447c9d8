// What a model costs, from its topology alone. Tested against the bytes written and mapped.
#pragma once

#include <cstdint>

#include "model/model.h"

namespace refold {

struct Cost {
    uint64_t parameters = 0;          // elements of stored tensors
    uint64_t bytes = 0;               // of stored tensors, on disk and resident: each unique tensor once
    uint64_t kv_bytes_per_token = 0;  // all positions together, at the given KV element size
    uint64_t flops_per_token = 0;     // multiply-adds x 2 of all linear maps of one token, head included
    // grows with the context: 4 x heads x head_dim per position and context token (scores and values)
    uint64_t attention_flops_per_context_token = 0;
};

struct Accounting {
    Cost model;
    Cost dense;  // the same positions without sharing
};

Accounting account(const Model& model, size_t kv_element_bytes = 2);

// Bytes of the KV cache of `context` tokens when caches whose rows may be evicted (see evictable()) have
// `rows` rows; the prefix not included.
uint64_t kv_bytes(const Model& model, int64_t context, int64_t rows, size_t kv_element_bytes = 2);

}  // namespace refold
