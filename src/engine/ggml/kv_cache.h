// Keys and values of earlier tokens.
#pragma once

#include <span>
#include <vector>

#include "engine/ggml/handles.h"
#include "model/model.h"

namespace refold {

// Keys and values of all positions: per position one tensor [head_dim, length, 2 * n_head_kv],
// the key heads followed by the value heads, so that one operation stores both and a head's rows are read
// without gaps; with the probabilities of another position the value heads alone. A position that reads
// another one's keys and values has that one's tensor. The prefix comes first.
struct KvCache {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor*> positions;  // null without attention

    // `lengths` by position: rows for the prefix and the tokens.
    KvCache(const Model& model, std::span<const int64_t> lengths, ggml_type type);
    uint64_t bytes() const;

private:
    void write_prefixes(const Model& model) const;
};

}  // namespace refold
