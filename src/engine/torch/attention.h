// Attention of batches of sequences. The queries of a sequence belong to its last tokens. Grouped-query
// attention: the query heads of a group share keys and values and count as further queries of their token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace refold {

struct AttentionRule {
    int64_t sequences = 1, groups = 0, per_group = 0, head_dim = 0;
    bool causal = true;
    int64_t window = 0;  // keys a token sees, itself included; 0: all
    int64_t prefix = 0;  // number of first keys that every token sees
    double softcap = 0;  // of scores; 0: off
    at::Tensor slopes;   // ALiBi [n_head]; undefined: off
    at::Tensor sinks;    // [n_head]: scores in the softmax that weight no value; undefined: none
    at::Tensor padding;  // [keys], true: no token sees the key; undefined: none
};

// q [sequences * queries, n_head * head_dim], already scaled; k and v [sequences * keys, groups * head_dim];
// the result has the shape of q. Probabilities exist for a block of queries at a time, only for keys that the
// block may see; the backward pass computes them again. So queries and keys stand for probabilities that
// another layer weights its own values with.
at::Tensor attention(const AttentionRule& rule, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v);

}  // namespace refold
