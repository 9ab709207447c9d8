#include "engine/ggml/resident_weights.h"

#include <cstring>

namespace refold {

ResidentWeights::Form ResidentWeights::form_of(const Storage& storage, ggml_backend_buffer_type_t memory) {
    const ggml_tensor* t = storage.tensor;
    return {memory, t->type, t->ne[0], t->ne[1], storage.fold, storage.layout};
}

void ResidentWeights::offer(const Storage& storage) {
    held_.emplace(form_of(storage, ggml_backend_buffer_get_type(storage.tensor->buffer)), *storage.tensor);
}

bool ResidentWeights::may_hold(const Storage& storage, ggml_backend_buffer_type_t memory) const {
    return held_.contains(form_of(storage, memory));
}

const ggml_tensor* ResidentWeights::equal_to(const Storage& storage) const {
    const ggml_tensor* wanted = storage.tensor;
    ggml_backend_buffer_type_t memory = ggml_backend_buffer_get_type(wanted->buffer);
    const size_t bytes = ggml_backend_buft_get_alloc_size(memory, wanted);  // some layouts take more
    const auto [first, last] = held_.equal_range(form_of(storage, memory));
    for (auto held = first; held != last; ++held)
        if (memcmp(held->second.data, wanted->data, bytes) == 0) return &held->second;
    return nullptr;
}

}  // namespace refold
