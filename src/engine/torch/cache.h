// Keys and values of the tokens before a step, for every position of the forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "model/config.h"

namespace refold {

class TorchCache {
public:
    // Holds up to `context` tokens; grows as they come.
    TorchCache(const ModelConfig& config, size_t n_positions, int64_t context, at::Device device);

    // Puts k and v [tokens, key/value heads of the position * head_dim] behind the first `past` tokens and
    // returns the keys and the values of all of them [past + tokens, ...].
    std::pair<at::Tensor, at::Tensor> append(size_t position, int64_t past, const at::Tensor& k,
                                             const at::Tensor& v);
    // The same of values alone, for positions that cache no keys.
    at::Tensor append(size_t position, int64_t past, const at::Tensor& v);
    uint64_t bytes() const;

private:
    at::Tensor append(at::Tensor& stored, int64_t past, const at::Tensor& added) const;

    struct KeysAndValues {
        at::Tensor keys, values;
    };
    std::vector<KeysAndValues> positions_;
    int64_t context_;
};

}  // namespace refold
