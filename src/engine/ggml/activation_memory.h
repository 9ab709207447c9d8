// Memory of the activations of graphs that are computed one after the other.
#pragma once

#include <cstdint>

#include "engine/ggml/handles.h"

namespace refold {

// As much as the largest of the graphs needs: all of them lie at its beginning, where the processor's caches
// still hold it.
class ActivationMemory {
public:
    ActivationMemory() : allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

    // Gives the tensors of a graph, of which `input` is one, their places. Returns false when there is not
    // enough memory.
    bool place(ggml_cgraph* graph, const ggml_tensor* input);
    // Changes when the memory grows: graphs placed before it did have lost theirs.
    uint64_t moves() const { return moves_; }
    uint64_t bytes() const { return ggml_gallocr_get_buffer_size(allocator_.get(), 0); }

private:
    ggml_gallocr_ptr allocator_;
    uint64_t moves_ = 0;
};

}  // namespace refold
