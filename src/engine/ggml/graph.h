// One step of the forward pass as a ggml graph, built once per shape and reused.
#pragma once

#include <bit>
#include <map>
#include <vector>

#include "engine/forward_input.h"
#include "engine/ggml/activation_memory.h"
#include "engine/ggml/attention.h"
#include "engine/ggml/device_run.h"
#include "engine/ggml/device_terms.h"
#include "engine/ggml/expert_product.h"
#include "engine/ggml/folded_product.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/kept_rows.h"
#include "engine/ggml/kv_cache.h"
#include "engine/ggml/loop_weights.h"
#include "engine/ggml/panel_product.h"
#include "engine/ggml/sequence_groups.h"
#include "engine/ggml/thread_choice.h"
#include "engine/ggml/weights.h"

namespace refold {

// The model that all steps run.
struct Network {
    ModelConfig config;
    Topology topology;
    std::optional<LayerRange> range;
    std::shared_ptr<const Observer> observer;
    EvictionPlan eviction;

    bool runs(size_t layer) const { return !range || range->contains(layer); }
    bool observes(size_t layer, Tap tap) const {
        return observer != nullptr && observer->taps.contains({layer, tap});
    }
};

enum class StepKind {
    network,    // all layers, or the range
    loop,       // one loop (the network is its block: looped_block.h) for tokens at any loops
    loop_keys,  // only the keys and values of a loop
};

// The sizes that a graph is built for.
struct StepShape {
    int64_t tokens = 0;   // of the step
    int64_t cached = 0;   // rows of the cache that attention reads, if not by groups: all until the new ones
    int64_t longest = 0;  // most rows that one token sees, padded
    int64_t kept = 0;     // `cached` and `longest` of caches that evict; 0: none does
    int64_t outputs = 0;  // tokens whose results are wanted; loops give hidden() of all tokens
    int64_t stretched = 0;  // length of the sequence that the rotation is stretched for; 0: not stretched
    bool residual = false;  // the input is a residual stream, not tokens
    bool adapted = false;   // some tokens have an adapter
    StepKind kind = StepKind::network;
    GroupedSequences::Shape groups = {}, output_groups = {};  // of several sequences on a device
    bool operator==(const StepShape&) const = default;
};

// Data of a step besides its tokens.
struct StepRows {
    std::vector<CacheRow> all;      // by token
    std::vector<CacheRow> kept;     // by token, of caches that evict
    std::vector<int32_t> outputs;   // tokens whose results are wanted; ascending for StepKind::network
    std::vector<int32_t> loops;     // by token
    std::vector<int32_t> adapters;  // by token: its set in StepWorkspace::adapters; below 0: none
    GroupedSequences groups, output_groups;  // of several sequences on a device: of tokens, of outputs
};

// Memory and kernels shared by the graphs of an engine, which are computed one at a time.
struct StepWorkspace {
    // `longest`: most rows of the cache that one token sees.
    // `run`: null for refold's kernels on the CPU.
    StepWorkspace(const ModelConfig& config, int64_t longest, int n_threads, DeviceRun* run)
        : threads(n_threads),
          device(run),
          attention(config.n_head, config.head_dim, {config.attention_softcap, config.max_alibi_bias},
                    longest, n_threads),
          panel_product(n_threads),
          expert_product(n_threads),
          folded_product(n_threads),
          few(kFewTokens, ThreadChoice(n_threads, ThreadChoice::kShortSteps)),
          many(kSizes, ThreadChoice(n_threads, ThreadChoice::kLongSteps)) {}

    uint64_t bytes() const {
        return activations.bytes() + buffer.size() + panel_product.bytes() + expert_product.bytes();
    }

    static constexpr size_t kFewTokens = 8, kSizes = 64;
    // Of a step of so many tokens. A token of a short prompt takes longer than one of a long prompt.
    ThreadChoice& choice(int64_t tokens) {
        const auto n = static_cast<size_t>(tokens);
        return n <= kFewTokens ? few[n - 1] : many[static_cast<size_t>(std::bit_width(n))];
    }

    int threads;
    DeviceRun* device;
    ActivationMemory activations;
    Attention attention;
    PanelProduct panel_product;
    ExpertProduct expert_product;
    FoldedProduct folded_product;
    std::vector<ThreadChoice> few;   // by number of tokens - 1
    std::vector<ThreadChoice> many;  // by the binary digits of the number of tokens
    uint64_t term_bytes() const {
        return (loops ? loops->bytes() : 0) + (adapters ? adapters->bytes() : 0) +
               (device_loops ? device_loops->bytes() : 0) + (device_adapters ? device_adapters->bytes() : 0);
    }

    std::unique_ptr<LoopWeights> loops;                          // null unless steps run by loop
    std::unique_ptr<RowTerms> adapters;                          // null: tokens have no adapters
    std::unique_ptr<DeviceTerms> device_loops, device_adapters;  // likewise on a device
    std::vector<uint8_t> buffer;                                 // of ggml's operations
};

class StepGraph {
public:
    StepGraph(const Network& network, StepWorkspace& workspace) : network_(network), workspace_(workspace) {}

    // Rebuilds the graph when the shape has changed or another graph has moved the activations.
    // Invalidates the results of other graphs.
    void prepare(const Weights& weights, const KvCache& cache, const StepShape& shape);
    const StepShape& shape() const { return shape_; }
    // Calls the observer before it returns.
    void compute(const ForwardInput& input, const StepRows& rows, const Weights& weights,
                 EngineThreads& engine_threads);
    // The step's attention to each row of the caches that evict by attention: F32 [cached, kv heads].
    struct Scores {
        size_t layer;
        ggml_tensor* sums;
    };
    std::span<const Scores> scores() const { return scores_; }
    // Of activations that are this graph's alone.
    uint64_t bytes() const { return workspace_.device != nullptr ? workspace_.device->bytes(place_) : 0; }
    // The numbers of a tensor that compute() has kept.
    std::span<const float> result(const ggml_tensor* tensor) const;
    // Results of compute(); empty where the model has none. hidden(): [outputs, n_embd], or [tokens, n_embd]
    // after a range or a loop.
    std::span<const float> hidden() const { return result(result_.hidden); }
    std::span<const float> logits() const { return result(result_.logits); }  // [outputs, n_vocab]
    std::span<const float> pooled() const { return result(result_.pooled); }  // [n_embd]
    std::span<const float> score() const { return result(result_.score); }    // [1]
    // [tokens] of a loop, before the sigmoid
    std::span<const float> exit_scores() const { return result(result_.exit_scores); }

private:
    friend class GraphOps;
    friend class DeviceOps;
    struct Result {
        ggml_tensor *hidden = nullptr, *logits = nullptr, *pooled = nullptr, *exit_scores = nullptr,
                    *score = nullptr;
    };
    // Inputs of the graph for caches of one length: the row that each token is written to, and the rows that
    // each token and each output sees (as Attention takes them).
    struct Rows {
        int64_t cached = 0, longest = 0;
        ggml_tensor *written = nullptr, *seen = nullptr, *seen_by_outputs = nullptr;
    };
    // Of queries on a device: the token of each, and the query of each token. Null: each token in turn.
    struct Order {
        ggml_tensor *tokens = nullptr, *queries = nullptr;
    };
    ggml_tensor* input(ggml_tensor* tensor);
    // What each token of the step, or each of `outputs`, adds to its scores of the rows that a group reads,
    // in caches that evict with `kept`: F16 [rows, tokens, 1, sequences], or F32.
    struct MaskKey {
        int64_t window;
        bool outputs, kept;
        size_t group;
        ggml_type type;
        auto operator<=>(const MaskKey&) const = default;
    };
    struct Mask {
        ggml_tensor* tensor = nullptr;
        SequenceGroup group = {};
        size_t first = 0;  // query of the group
        // Of each of its rows, [begin, end) that the last step showed, where the tensor keeps it until the
        // next.
        std::vector<std::pair<int64_t, int64_t>> shown = {};
    };
    ggml_tensor* mask(const MaskKey& key, const SequenceGroup& group, size_t first_query);
    ggml_tensor* mask(int64_t window, int64_t tokens);  // of one sequence
    void fill_mask(const MaskKey& key, Mask& mask, const ForwardInput& input, const StepRows& rows) const;
    // An input that is the same in every step: I32 [values], or F32.
    ggml_tensor* constant(std::span<const int32_t> values);
    ggml_tensor* constant(std::span<const float> values);
    ggml_tensor* constant(ggml_type type, std::span<const std::byte> values);
    // Adds the network's nodes to the graph and sets result_.
    template <class Ops>
    void add_network(const Weights& weights, const KvCache& cache);
    void run_on_cpu(EngineThreads& engine_threads);
    void run_on_device();
    Rows new_rows(int64_t cached, int64_t longest);
    static void fill_rows(const Rows& rows, std::span<const CacheRow> by_token,
                          std::span<const int32_t> outputs);
    static void fill_order(const Order& order, const GroupedSequences& groups);
    void fill_tables(const ForwardInput& input, const Weights& weights);
    void fill_sets(const StepRows& rows);
    void show(const ForwardInput& input);

    const Network& network_;
    StepWorkspace& workspace_;
    StepShape shape_;
    std::unique_ptr<std::byte[]> description_;  // memory of context_, as large as the network needs
    ggml_context_ptr context_;
    ggml_cgraph* graph_ = nullptr;
    uint64_t moves_ = 0;      // ActivationMemory::moves() or DeviceRun::places() when it got its memory
    bool ready_ = false;      // it has all of its memory: a lost worker ends prepare() before
    DeviceRun::Place place_;  // on a device
    std::map<Slot, ggml_tensor*> tables_;  // rows of the embedding tables [n_embd, tokens]
    std::map<MaskKey, Mask> masks_;
    std::vector<std::pair<ggml_tensor*, std::vector<std::byte>>> constants_;
    // Results of a device's step that were asked for.
    mutable std::map<const ggml_tensor*, std::vector<float>> fetched_;
    ggml_tensor* residual_ = nullptr;
    std::vector<Scores> scores_;
    struct Observed {
        size_t layer;
        Tap tap;
        ggml_tensor* copy;
    };
    std::vector<Observed> observed_;
    ggml_tensor *positions_ = nullptr, *outputs_ = nullptr;  // by token
    ggml_tensor *loops_ = nullptr, *adapters_ = nullptr;     // by token
    Order order_, output_order_;
    // Of a device: the same by output, and 1 for tokens after their first loop, else 0. Null: not needed.
    ggml_tensor *loops_of_outputs_ = nullptr, *adapters_of_outputs_ = nullptr, *resumed_ = nullptr;
    Rows all_, kept_;             // of caches of the whole context, and of those that evict
    bool own_operations_ = true;  // multiply few tokens by factored weights with our own operations
    Result result_;
    std::vector<float> shown_;  // probabilities for the observer
};

}  // namespace refold
