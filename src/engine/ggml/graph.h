// One step of the forward pass as a ggml graph, built once per shape and reused.
#pragma once

#include <vector>

#include "engine/ggml/attention.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/weights.h"

namespace refold {

// Keys and values of all positions: per position one tensor [head_dim, context, 2 * n_head_kv], the key heads
// followed by the value heads, so that one operation stores both and a head's rows are read without gaps.
struct KvCache {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor*> positions;

    KvCache(const ModelConfig& config, size_t n_positions, int64_t length, ggml_type type);
};

// Tokens of this step, rows of the cache that attention reads (earlier and new tokens, padded), tokens whose
// logits are wanted (the last ones of the step).
struct StepShape {
    int64_t tokens = 0, cached = 0, outputs = 0;
    bool operator==(const StepShape&) const = default;
};

class StepGraph {
public:
    StepGraph(const ModelConfig& config, int64_t context, int threads)
        : threads_(threads),
          attention_(config.n_head, config.n_head_kv, config.head_dim, context, threads),
          allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

    // Rebuilds when the shape differs from the last one.
    void prepare(const ModelConfig& config, size_t n_positions, const Weights& weights, const KvCache& cache,
                 StepShape shape);
    // `embeddings` is filled by the caller through input(); the step starts at cache row `past`.
    float* input() const { return static_cast<float*>(embeddings_->data); }  // [n_embd, tokens]
    void compute(int64_t past, ggml_threadpool* pool);
    const float* logits() const { return static_cast<const float*>(logits_->data); }  // [n_vocab, outputs]
    uint64_t compute_bytes() const;

private:
    friend class GraphOps;
    int threads_;
    DecodeAttention attention_;
    StepShape shape_;
    ggml_context_ptr context_;
    ggml_gallocr_ptr allocator_;
    ggml_cgraph* graph_ = nullptr;
    ggml_tensor *embeddings_ = nullptr, *positions_ = nullptr, *rows_ = nullptr, *mask_ = nullptr,
                *outputs_ = nullptr, *logits_ = nullptr;
    std::vector<uint8_t> work_;
};

}  // namespace refold
