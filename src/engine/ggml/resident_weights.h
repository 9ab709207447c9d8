// Weights in memory that the engines of several models read: what one has loaded, for others that would hold
// the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/ggml/linear_plan.h"

namespace refold {

class ResidentWeights {
public:
    // Keeps a buffer as long as this and everything that it is kept in.
    void keep(ggml_backend_buffer_ptr buffer) { buffers_.push_back(std::move(buffer)); }
    void keep(std::shared_ptr<const ResidentWeights> others) { others_ = std::move(others); }
    // Offers a loaded storage, which lies in the CPU's memory, to others.
    void offer(const Storage& storage);
    // A description of the same bytes as those of `storage`, which is loaded; null where there is none.
    const ggml_tensor* equal_to(const Storage& storage) const;
    // Whether there is anything of the storage's shape and layout in memory of this type.
    bool may_hold(const Storage& storage, ggml_backend_buffer_type_t memory) const;

private:
    // Type of the buffer, of the numbers, ne[0], ne[1], Storage::fold and Storage::layout.
    using Form = std::tuple<ggml_backend_buffer_type_t, ggml_type, int64_t, int64_t, int64_t, Layout>;
    static Form form_of(const Storage& storage, ggml_backend_buffer_type_t memory);

    std::vector<ggml_backend_buffer_ptr> buffers_;
    std::multimap<Form, ggml_tensor> held_;  // copies: the tensors themselves end with their engine
    std::shared_ptr<const ResidentWeights> others_;
};

}  // namespace refold
