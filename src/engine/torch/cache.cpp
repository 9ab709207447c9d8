#include "engine/torch/cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace refold {

static constexpr int64_t kFirstTokens = 256;

TorchCache::TorchCache(const ModelConfig& config, size_t n_layer, int64_t context, at::Device device)
    : layers_(n_layer), context_(context) {
    for (size_t p = 0; p < n_layer; ++p) {
        const int64_t width = config.n_head_kv_of(p) * config.head_dim;
        layers_[p] = {at::empty({0, width}, device), at::empty({0, width}, device)};
    }
}

at::Tensor TorchCache::append(at::Tensor& stored, int64_t past, const at::Tensor& added) const {
    const int64_t length = past + added.size(0);
    if (length > stored.size(0)) {
        const int64_t room = std::clamp(2 * length, std::min(kFirstTokens, context_), context_);
        const at::Tensor grown = at::empty({room, stored.size(1)}, stored.options());
        grown.narrow(0, 0, past).copy_(stored.narrow(0, 0, past));
        stored = grown;
    }
    stored.narrow(0, past, added.size(0)).copy_(added);
    return stored.narrow(0, 0, length);
}

std::pair<at::Tensor, at::Tensor> TorchCache::append(size_t layer, int64_t past, const at::Tensor& k,
                                                     const at::Tensor& v) {
    auto& [keys, values] = layers_[layer];
    at::Tensor all_keys = append(keys, past, k);
    return {std::move(all_keys), append(values, past, v)};
}

at::Tensor TorchCache::append(size_t layer, int64_t past, const at::Tensor& v) {
    return append(layers_[layer].values, past, v);
}

uint64_t TorchCache::bytes() const {
    uint64_t bytes = 0;
    for (const auto& [keys, values] : layers_) bytes += keys.nbytes() + values.nbytes();
    return bytes;
}

}  // namespace refold
