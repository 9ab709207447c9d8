// Attention of batches of sequences. Queries of a sequence are its last tokens; query heads of a group, which
// have keys and values in common, are further queries of their token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace refold {

struct AttentionRule {
    int64_t sequences = 1, groups = 0, per_group = 0, head_dim = 0;
    bool causal = true;
    int64_t window = 0;  // keys a token sees, itself included; 0: all
    int64_t prefix = 0;  // first keys, which every token sees
    double softcap = 0;  // of scores; 0: off
    at::Tensor slopes;   // ALiBi [n_head]; undefined: off
    at::Tensor padding;  // [keys], true: no token sees it; undefined: none
};

// q [sequences * queries, n_head * head_dim], scaled; k and v [sequences * keys, groups * head_dim]; the
// result is as q. Probabilities are made for some queries at a time, in the backward pass again, and only for
// keys that they may see.
at::Tensor attention(const AttentionRule& rule, const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v);

// The same in two steps, for probabilities [sequences * groups, queries * per_group, keys] that others use as
// well.
at::Tensor probabilities(const AttentionRule& rule, const at::Tensor& q, const at::Tensor& k);
at::Tensor weighted(const AttentionRule& rule, const at::Tensor& probabilities, const at::Tensor& v);

}  // namespace refold
