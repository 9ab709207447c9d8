#include "engine/ggml/activation_memory.h"

namespace refold {

bool ActivationMemory::place(ggml_cgraph* graph, const ggml_tensor* input) {
    const uint64_t before = bytes();
    // Asked for always: a plan made for another graph of as many nodes would be taken for this one's.
    const bool enough = ggml_gallocr_reserve(allocator_.get(), graph);
    const bool moved = bytes() != before;
    if (moved) ++moves_;  // also where there is not enough: the old memory is given back first
    if (!enough || !ggml_gallocr_alloc_graph(allocator_.get(), graph)) return false;
    if (moved) advise_large_pages(input->buffer);
    return true;
}

}  // namespace refold
