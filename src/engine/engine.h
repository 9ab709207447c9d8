// Inference: a model's weights in memory once, a KV cache, one sequence; by either engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/tap.h"

namespace refold {

enum class EngineKind {
    ggml,   // quantised SIMD kernels
    torch,  // libtorch in float32, where this build has it: see has_torch_engine()
};
bool has_torch_engine();

enum class KvType { f16, f32 };

// How weights made of parts of several tensors are multiplied; `automatic` is the fast path, `composed`
// builds them from ggml's own operations (reference and comparison).
enum class SharedExecution { automatic, composed };

// How weights made of factors are multiplied. `automatic` decides for every slot and batch size by operations
// and bytes: see choose_execution().
enum class FactoredExecution { automatic, factored, reconstructed };

// Which rows of the KV cache stay when it holds fewer than the context has tokens.
enum class KvPolicy {
    none,
    h2o,     // the most recent tokens and, head by head, those with the largest accumulated attention
    recent,  // the first tokens ("attention sinks") and the most recent ones
};
const char* kv_policy_name(KvPolicy policy);

// KV eviction while running: H2O (Zhang et al. 2023, algorithm 1; UniAttn, table 3) or its plain baseline
// (StreamingLLM, Xiao et al. 2024, without its shift of positions: keys keep their rotation). Positions with
// a window keep what they have. Tokens are run in steps of at most a quarter of the rows, and rows leave
// before a step that would not fit, so results depend on how a text is cut into calls.
struct EvictionOptions {
    KvPolicy policy = KvPolicy::none;
    double budget = 1;    // rows of the cache per token of the context, the tokens being run included
    double recent = 0.5;  // h2o: part of the rows that stay that the most recent tokens have
    int64_t sinks = 4;    // recent: first tokens that always stay

    bool active() const { return policy != KvPolicy::none && budget < 1; }
    // Of a cache: ceil(budget * context).
    int64_t rows(int64_t context) const;
};

struct EngineOptions {
    EngineKind kind = EngineKind::ggml;
    int threads = 0;          // 0: all cores
    int64_t context = 0;      // tokens of KV cache; 0: the model's context length, at most 4096
    int64_t chunk = 512;      // tokens per prefill step
    bool f32 = false;         // float32 weights, activations and KV
    KvType kv = KvType::f16;  // ignored with f32
    SharedExecution shared = SharedExecution::automatic;
    FactoredExecution factored = FactoredExecution::automatic;
    // Only these positions are loaded and run, by evaluate_range(): a model larger than the memory can be
    // worked on part by part. Sources of attention must be in the range.
    std::optional<PositionRange> range = std::nullopt;
    // Sees activations of every step. ggml engine only.
    std::shared_ptr<const Observer> observer = nullptr;
    std::string device = "auto";  // of the torch engine: auto (a CUDA device where there is one), cpu or cuda
    // ggml engine only, and neither with ALiBi nor with a prefix, whose distances and rows are the context's.
    EvictionOptions eviction = {};
};

struct EngineMemory {
    uint64_t weight_bytes = 0;   // resident weights, each stored tensor once
    uint64_t kv_bytes = 0;       // the whole preallocated cache
    uint64_t compute_bytes = 0;  // activations, scratch and work buffers
};

// One sequence for an encoder.
struct EncoderInput {
    std::span<const int32_t> tokens;
    std::span<const int32_t> token_types;  // empty: all 0
    std::span<const int32_t> mask;         // 1: token, 0: padding, seen by no token; empty: all 1
};

struct Encoding {
    std::vector<float> last_hidden_state;  // [tokens, n_embd]
    std::vector<float> logits;             // [tokens, n_vocab]; empty without a language-model head
    std::vector<float> pooled;             // [n_embd]; empty without a pooler
};

class Backend;

class Engine {
public:
    // Throws Error(usage) for options out of range, Error(unsupported) for tensor types without kernels and
    // for an engine that this build lacks.
    // Weights are copied out of the model's map in the engine's own layout, so `model` may be released.
    Engine(const Model& model, const EngineOptions& options);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Appends `tokens` to the sequence and returns the logits [n_vocab] after the last one (valid until the
    // next call). Throws Error(input) for ids outside the vocabulary, Error(usage) when the context is full.
    std::span<const float> evaluate(std::span<const int32_t> tokens);
    // Same, giving the logits of every position from `from` on: `sink(first, logits)` with logits
    // [rows, n_vocab] of the tokens first, first + 1, ... of this call.
    using LogitsSink = std::function<void(size_t first, std::span<const float> logits)>;
    void evaluate_all(std::span<const int32_t> tokens, const LogitsSink& sink, size_t from = 0);

    // Runs EngineOptions::range on the residual stream before it, [tokens, n_embd], of tokens that are
    // appended to the sequence; `sink` gets the residual stream behind the range, `first` counting from the
    // first of this call; nothing when the observer is for `only_taps`.
    void evaluate_range(std::span<const float> residual, const LogitsSink& sink);
    // The same from tokens, for a range that begins at position 0; an empty one gives their embeddings.
    void evaluate_range(std::span<const int32_t> tokens, const LogitsSink& sink);

    // Runs a whole sequence through an encoder (ModelConfig::causal is false; evaluate() is for decoders).
    // Throws Error(usage) for a decoder, Error(input) for ids, types or lengths that do not fit.
    Encoding encode(const EncoderInput& input);

    // Forgets all tokens after the first `length`. Throws Error(usage) when some, but not all would be
    // forgotten and rows may have been evicted: see evicts().
    void truncate(int64_t length);
    // The KV cache has fewer rows than the context has tokens.
    bool evicts() const { return options_.eviction.active(); }
    int64_t length() const;
    int64_t context() const;
    int64_t n_vocab() const;
    const ModelConfig& config() const { return config_; }
    int threads() const;
    EngineMemory memory() const;

    // Lets the worker threads sleep (between benchmark rounds of another engine).
    void pause();

private:
    void check(std::span<const int32_t> tokens) const;
    void check_room(size_t tokens) const;
    std::span<const float> step(std::span<const int32_t> tokens, int64_t outputs, int64_t sequence_length);
    std::span<const float> range_step(std::span<const int32_t> tokens, std::span<const float> residual,
                                      int64_t sequence_length);

    EngineOptions options_;
    ModelConfig config_;
    std::unique_ptr<Backend> backend_;
    int64_t length_ = 0;
};

}  // namespace refold
