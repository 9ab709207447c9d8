#include "engine/ggml/kv_cache.h"

#include <ggml-cpu.h>

#include <algorithm>

#include "core/error.h"
#include "engine/ggml/device_run.h"
#include "model/prefix_rows.h"

namespace refold {

ggml_type cache_type(const EngineOptions& options) {
    return static_cast<ggml_type>(options.f32 ? DType::F32 : element_type(options.kv));
}

KvCache::KvCache(const Model& model, std::span<const int64_t> lengths, ggml_type type,
                 const DeviceRun* device) {
    const ModelConfig& config = model.config;
    std::vector<ggml_backend_buffer_type_t> memories;  // of contexts
    const auto context_of = [&](size_t layer) {
        ggml_backend_buffer_type_t memory =
            device != nullptr ? device->memory(layer) : ggml_backend_cpu_buffer_type();
        const auto known = std::ranges::find(memories, memory);
        if (known != memories.end()) return contexts[static_cast<size_t>(known - memories.begin())].get();
        memories.push_back(memory);
        return contexts.emplace_back(make_context(model.topology.layers.size())).get();
    };
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        const AttentionSource& source = model.topology.source(p);
        const bool attends = model.topology.has(p, Slot::attn_o);
        if (!attends || source.kv) {
            layers.push_back(attends ? layers[*source.kv] : nullptr);
            continue;
        }
        const int64_t heads = config.n_head_kv_of(p) * (source.probabilities ? 1 : 2);
        layers.push_back(ggml_new_tensor_3d(context_of(p), type, config.head_dim, lengths[p], heads));
    }
    for (size_t i = 0; i < contexts.size(); ++i) {
        ggml_backend_buffer_t buffer =
            buffers.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(contexts[i].get(), memories[i]))
                .get();
        if (buffer == nullptr) {
            fail(ErrorCode::io, "engine",
                 "cannot allocate the KV cache of {} rows: not enough memory{} - use a smaller --context",
                 *std::max_element(lengths.begin(), lengths.end()),
                 ggml_backend_buft_is_host(memories[i])
                     ? ""
                     : fmt::format(" on {}", ggml_backend_buft_name(memories[i])));
        }
        if (ggml_backend_buffer_is_host(buffer)) advise_large_pages(buffer);
        // Our attention reads no row that a token does not see. ggml's attention (encoders, devices)
        // multiplies padding by 0, and 0 * NaN is NaN.
        if (!config.causal || device != nullptr) ggml_backend_buffer_clear(buffer, 0);
    }
    if (contexts.empty()) return;
    if (config.n_prefix > 0) write_prefixes(model);
}

// Steps write the tokens' rows after these.
void KvCache::write_prefixes(const Model& model) const {
    const auto write = [&](ggml_tensor* cache, const std::vector<float>& rows, int64_t first_head) {
        const int64_t heads = cache->ne[2] / 2, width = cache->ne[0];
        for (int64_t row = 0; row < model.config.n_prefix; ++row) {
            for (int64_t h = 0; h < heads; ++h) {
                const float* from = rows.data() + (row * heads + h) * width;
                std::vector<std::byte> stored(cache->nb[1]);
                if (cache->type == GGML_TYPE_F32) {
                    std::copy(from, from + width, reinterpret_cast<float*>(stored.data()));
                } else {
                    ggml_get_type_traits_cpu(cache->type)->from_float(from, stored.data(), width);
                }
                ggml_backend_tensor_set(cache, stored.data(),
                                        static_cast<size_t>(row) * cache->nb[1] +
                                            static_cast<size_t>(first_head + h) * cache->nb[2],
                                        stored.size());
            }
        }
    };
    for (size_t p = 0; p < layers.size(); ++p) {
        if (layers[p] == nullptr) continue;
        const PrefixRows rows = prefix_rows(model, p);
        write(layers[p], rows.keys, 0);
        write(layers[p], rows.values, layers[p]->ne[2] / 2);
    }
}

uint64_t KvCache::row_bytes() const {
    uint64_t most = 1;
    for (const ggml_tensor* layer : layers)
        if (layer != nullptr)
            most = std::max<uint64_t>(most, layer->nb[1] * static_cast<uint64_t>(layer->ne[2]));
    return most;
}

uint64_t KvCache::bytes() const {
    uint64_t bytes = 0;
    for (const auto& buffer : buffers) bytes += ggml_backend_buffer_get_size(buffer.get());
    return bytes;
}

}  // namespace refold
