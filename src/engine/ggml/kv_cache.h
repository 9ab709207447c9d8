// The KV cache: keys and values of earlier tokens.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/ggml/handles.h"
#include "model/model.h"

namespace refold {

// The type of an engine's cache.
ggml_type cache_type(const EngineOptions& options);

class DeviceRun;

// One tensor per layer, [head_dim, length, 2 * n_head_kv]: the key heads, then the value heads, so that one
// operation stores both and a head's rows are contiguous. A layer that uses another layer's probabilities has
// the value heads only; a layer that uses another layer's keys and values has that layer's tensor. The first
// rows are the model's prefix.
struct KvCache {
    std::vector<ggml_context_ptr> contexts;        // one for the memory of each device
    std::vector<ggml_backend_buffer_ptr> buffers;  // likewise
    std::vector<ggml_tensor*> layers;              // null for a layer without attention

    // `lengths` by layer: rows of prefix and tokens. Throws Error(io) if there is not enough memory.
    // `device`: in whose memory of each layer; null: the CPU's.
    KvCache(const Model& model, std::span<const int64_t> lengths, ggml_type type,
            const DeviceRun* device = nullptr);
    uint64_t bytes() const;
    uint64_t row_bytes() const;  // of a token in the layer that keeps most of it

private:
    void write_prefixes(const Model& model) const;
};

}  // namespace refold
