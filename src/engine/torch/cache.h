// The KV cache of the torch engine.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "model/config.h"

namespace refold {

class TorchCache {
public:
    // Holds up to `context` tokens and grows as they are appended.
    TorchCache(const ModelConfig& config, size_t n_layer, int64_t context, at::Device device);

    // Appends k and v [tokens, KV heads of the layer * head_dim] after the first `past` tokens. Returns the
    // keys and values of all tokens [past + tokens, ...].
    std::pair<at::Tensor, at::Tensor> append(size_t layer, int64_t past, const at::Tensor& k,
                                             const at::Tensor& v);
    // The same for values alone, in layers that cache no keys.
    at::Tensor append(size_t layer, int64_t past, const at::Tensor& v);
    uint64_t bytes() const;

private:
    at::Tensor append(at::Tensor& stored, int64_t past, const at::Tensor& added) const;

    struct KeysAndValues {
        at::Tensor keys, values;
    };
    std::vector<KeysAndValues> layers_;
    int64_t context_;
};

}  // namespace refold
