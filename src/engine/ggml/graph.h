// One step of the forward pass as a ggml graph, built once per shape and reused.
#pragma once

#include <map>
#include <vector>

#include "engine/backend.h"
#include "engine/ggml/activation_memory.h"
#include "engine/ggml/attention.h"
#include "engine/ggml/eviction.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/kv_cache.h"
#include "engine/ggml/q8_product.h"
#include "engine/ggml/staged_weights.h"
#include "engine/ggml/weights.h"

namespace refold {

// What all steps have in common.
struct Network {
    ModelConfig config;
    Topology topology;
    std::optional<PositionRange> range;
    std::shared_ptr<const Observer> observer;
    EvictionPlan eviction;

    bool runs(size_t position) const { return !range || range->contains(position); }
    bool observes(size_t position, Tap tap) const {
        return observer != nullptr && observer->taps.contains({position, tap});
    }
};

// What a step runs: the network, or where it is one loop of a model (stages.h), for tokens of any loops that
// loop or its keys and values alone.
enum class StepKind { network, loop, loop_keys };

// What a graph is built for.
struct StepShape {
    int64_t tokens = 0;     // of this step
    int64_t cached = 0;     // rows of the cache that attention reads: prefix, earlier and new tokens, padded
    int64_t longest = 0;    // most rows that a token sees, padded
    int64_t kept = 0;       // both of caches that evict; 0: none does
    int64_t outputs = 0;    // tokens whose results are wanted; loops have others as well: hidden()
    int64_t stretched = 0;  // length of a sequence that the rotation is stretched for; 0: not stretched
    bool residual = false;  // begins with a residual stream in place of tokens
    StepKind kind = StepKind::network;
    bool operator==(const StepShape&) const = default;
};

// Where a token's keys and values go, and that of its sequence's first row.
struct CacheRow {
    int32_t first, own;
};

// What changes from step to step besides the tokens.
struct StepRows {
    std::vector<CacheRow> all;     // by token
    std::vector<CacheRow> kept;    // the same of caches that evict
    std::vector<int32_t> outputs;  // tokens whose results are wanted, ascending but for loops
    std::vector<int32_t> stages;   // by token: its loop
};

// What the graphs of an engine have in common: they are computed one after the other.
struct StepWorkspace {
    // `longest`: most rows of the cache that a token sees.
    StepWorkspace(const ModelConfig& config, int64_t longest, int n_threads)
        : threads(n_threads),
          attention(config.n_head, config.head_dim, {config.attention_softcap, config.max_alibi_bias},
                    longest, n_threads),
          q8_product(n_threads) {}

    uint64_t bytes() const { return activations.bytes() + buffer.size() + q8_product.bytes(); }

    int threads;
    ActivationMemory activations;
    Attention attention;
    Q8Product q8_product;
    std::unique_ptr<StagedWeights> staged;  // of loops
    std::vector<uint8_t> buffer;            // of ggml's operations
};

class StepGraph {
public:
    StepGraph(const Network& network, StepWorkspace& workspace) : network_(network), workspace_(workspace) {}

    // Rebuilds when the shape differs from the last one, or another graph has moved the activations. Other
    // graphs' results are no longer valid.
    void prepare(const Weights& weights, const KvCache& cache, const StepShape& shape);
    const StepShape& shape() const { return shape_; }
    // Shows what is observed before it returns.
    void compute(const StepInput& input, const StepRows& rows, const Weights& weights, ggml_threadpool* pool);
    // Attention that compute() added to the rows of caches that evict by it: F32 [cached, kv heads].
    struct Scores {
        size_t position;
        ggml_tensor* sums;
    };
    std::span<const Scores> scores() const { return scores_; }
    static std::span<const float> floats(const ggml_tensor* tensor) {
        if (tensor == nullptr) return {};
        return {static_cast<const float*>(tensor->data), static_cast<size_t>(ggml_nelements(tensor))};
    }
    // Results of compute(); empty where the model has none.
    // [outputs, n_embd]; [tokens, n_embd] of a range or loop
    std::span<const float> hidden() const { return floats(result_.hidden); }
    std::span<const float> logits() const { return floats(result_.logits); }  // [outputs, n_vocab]
    std::span<const float> pooled() const { return floats(result_.pooled); }  // [n_embd]

private:
    friend class GraphOps;
    struct Result {
        ggml_tensor *hidden = nullptr, *logits = nullptr, *pooled = nullptr;
    };
    // Rows of the caches of one length: those that tokens are written to, and what tokens and outputs see
    // (Attention).
    struct Rows {
        int64_t cached = 0, longest = 0;
        ggml_tensor *written = nullptr, *seen = nullptr, *seen_by_outputs = nullptr;
    };
    ggml_tensor* input(ggml_tensor* tensor);
    Rows new_rows(int64_t cached, int64_t longest);
    static void fill_rows(const Rows& rows, std::span<const CacheRow> by_token,
                          std::span<const int32_t> outputs);
    void fill_tables(const StepInput& input, const Weights& weights);
    void fill_masks(const StepInput& input);
    void show(const StepInput& input);

    const Network& network_;
    StepWorkspace& workspace_;
    StepShape shape_;
    std::unique_ptr<std::byte[]> description_;  // of the tensors, in the context; its size is the network's
    ggml_context_ptr context_;
    ggml_cgraph* graph_ = nullptr;
    uint64_t moves_ = 0;                     // of the activations, when this was placed in them
    std::map<Slot, ggml_tensor*> tables_;    // rows of the embedding tables [n_embd, tokens]
    std::map<int64_t, ggml_tensor*> masks_;  // by window
    ggml_tensor* residual_ = nullptr;
    std::vector<Scores> scores_;
    struct Observed {
        size_t position;
        Tap tap;
        ggml_tensor* copy;
    };
    std::vector<Observed> observed_;
    ggml_tensor *positions_ = nullptr, *outputs_ = nullptr;  // by token
    ggml_tensor* stages_ = nullptr;
    Rows all_, kept_;             // of caches of the whole context, and of others
    bool own_operations_ = true;  // for factors and few tokens
    Result result_;
    std::vector<float> shown_;
};

}  // namespace refold
