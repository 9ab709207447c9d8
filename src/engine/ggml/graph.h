// One step of the forward pass as a ggml graph, built once per shape and reused.
#pragma once

#include <map>
#include <vector>

#include "engine/backend.h"
#include "engine/ggml/attention.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/weights.h"

namespace refold {

// Keys and values of all positions: per position one tensor [head_dim, length, 2 * n_head_kv],
// the key heads followed by the value heads, so that one operation stores both and a head's rows are read
// without gaps. The prefix comes first.
struct KvCache {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor*> positions;  // null without attention

    // `length` rows for the prefix and the context.
    KvCache(const Model& model, int64_t length, ggml_type type);
    uint64_t bytes() const;

private:
    void write_prefixes(const Model& model) const;
};

// What a graph is built for.
struct StepShape {
    int64_t tokens = 0;     // of this step
    int64_t cached = 0;     // rows of the cache that attention reads: prefix, earlier and new tokens, padded
    int64_t outputs = 0;    // tokens whose results are wanted, the last ones of the step
    int64_t stretched = 0;  // length of a sequence that the rotation is stretched for; 0: not stretched
    bool operator==(const StepShape&) const = default;
};

class StepGraph {
public:
    // `cached`: rows of the cache.
    StepGraph(const ModelConfig& config, int64_t cached, int threads)
        : threads_(threads),
          attention_(config.n_head, config.head_dim, {config.attention_softcap, config.max_alibi_bias},
                     cached, threads),
          allocator_(ggml_gallocr_new(ggml_backend_cpu_buffer_type())) {}

    // Rebuilds when the shape differs from the last one.
    void prepare(const ModelConfig& config, size_t n_positions, const Weights& weights, const KvCache& cache,
                 StepShape shape);
    void compute(const StepInput& input, const ModelConfig& config, const Weights& weights,
                 ggml_threadpool* pool);
    // Results of compute(); empty where the model has none.
    std::span<const float> hidden() const { return floats(result_.hidden); }  // [outputs, n_embd]
    std::span<const float> logits() const { return floats(result_.logits); }  // [outputs, n_vocab]
    std::span<const float> pooled() const { return floats(result_.pooled); }  // [n_embd]
    uint64_t compute_bytes() const;

private:
    friend class GraphOps;
    struct Result {
        ggml_tensor *hidden = nullptr, *logits = nullptr, *pooled = nullptr;
    };
    static std::span<const float> floats(const ggml_tensor* tensor) {
        if (tensor == nullptr) return {};
        return {static_cast<const float*>(tensor->data), static_cast<size_t>(ggml_nelements(tensor))};
    }
    ggml_tensor* input(ggml_tensor* tensor);
    void fill_tables(const StepInput& input, const Weights& weights);
    void fill_masks(const StepInput& input, const ModelConfig& config);

    int threads_;
    DecodeAttention attention_;
    StepShape shape_;
    ggml_context_ptr context_;
    ggml_gallocr_ptr allocator_;
    ggml_cgraph* graph_ = nullptr;
    std::map<Slot, ggml_tensor*> tables_;    // rows of the embedding tables [n_embd, tokens]
    std::map<int64_t, ggml_tensor*> masks_;  // by window
    // By token: its position, the row of the cache that it is written to, and the same for our attention.
    ggml_tensor *positions_ = nullptr, *rows_ = nullptr, *last_seen_ = nullptr, *outputs_ = nullptr;
    bool own_operations_ = true;  // for factors and few tokens
    Result result_;
    std::vector<uint8_t> work_;
};

}  // namespace refold
