// Memory of activations that graphs share, because they run one after the other.
#pragma once

#include <cstdint>

#include "engine/ggml/handles.h"

namespace refold {

// As large as the largest graph needs. All graphs use it from its start, so it stays warm in the caches.
class ActivationMemory {
public:
    ActivationMemory() : allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

    // Allocates the tensors of a graph; `input` is one of them. Returns false when memory is exhausted.
    bool place(ggml_cgraph* graph, const ggml_tensor* input);
    // Number of times the memory has moved. Graphs placed before the last move must be placed again.
    uint64_t moves() const { return moves_; }
    uint64_t bytes() const { return ggml_gallocr_get_buffer_size(allocator_.get(), 0); }

private:
    ggml_gallocr_ptr allocator_;
    uint64_t moves_ = 0;
};

}  // namespace refold
