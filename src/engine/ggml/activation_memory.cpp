#include "engine/ggml/activation_memory.h"

namespace refold {

bool ActivationMemory::place(ggml_cgraph* graph, const ggml_tensor* input) {
    const uint64_t before = bytes();
    // Always reserve: ggml would reuse the plan of another graph with as many nodes for this one.
    const bool enough = ggml_gallocr_reserve(allocator_.get(), graph);
    const bool moved = bytes() != before;
    if (moved) ++moves_;  // also on failure: the old memory is freed before the new is allocated
    if (!enough || !ggml_gallocr_alloc_graph(allocator_.get(), graph)) return false;
    if (moved) advise_large_pages(input->buffer);
    return true;
}

}  // namespace refold
