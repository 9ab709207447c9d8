// Inference. An engine holds a model's weights once and a KV cache; a step runs rows of any of its sequences.
// One sequence, an encoder, a range of layers and an observed run are all uses of this interface.
// SingleSequence (engine/single_sequence.h) is the convenient way to run one sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/eviction.h"
#include "engine/worker_access.h"
#include "model/adapter/adapter.h"
#include "model/model.h"
#include "model/rope_override.h"
#include "model/tap.h"

namespace refold {

enum class EngineKind {
    ggml,   // quantized SIMD kernels
    torch,  // libtorch in float32, in builds that have it: see has_torch_engine()
};
bool has_torch_engine();

// Of keys and values in the cache. Blocks of 32 numbers of q8_0 and q4_0 need heads of whole blocks.
enum class KvType { f16, f32, q8_0, q4_0 };
const char* kv_type_name(KvType type);
std::optional<KvType> find_kv_type(std::string_view name);
DType element_type(KvType type);

// In what precision to multiply by weights in F16 and BF16. `stored`: as ggml does (by F16 weights in
// float32). `bf16`: F16 weights are rounded to BF16 when they are loaded, and inputs in each product: faster
// where the CPU has products of BF16 pairs.
enum class Precision { stored, bf16 };

// How to multiply by weights that are assembled from several tensors. `automatic` is the fast path;
// `composed` uses ggml's own operations only (for reference and comparison).
enum class SharedExecution { automatic, composed };

// How to multiply by factored weights. `automatic` decides per slot by bytes: see choose_execution().
enum class FactoredExecution { automatic, factored, reconstructed };

// Contexts that a KV cache for any number of sequences has room for by default.
constexpr int64_t kDefaultContexts = 8;

// Weights in memory that an engine shares with others: see Engine::resident_weights().
class ResidentWeights;

struct EngineOptions {
    EngineKind kind = EngineKind::ggml;
    int threads = 0;      // 0: all cores
    int64_t context = 0;  // most tokens of one sequence; 0: the model's context length, at most 4096
    int64_t chunk = 512;  // most rows of one step
    bool f32 = false;     // float32 weights, activations and KV cache
    Precision precision = Precision::stored;  // ignored with f32
    KvType kv = KvType::f16;                  // ignored with f32; an encoder's is f16 or f32
    SharedExecution shared = SharedExecution::automatic;
    FactoredExecution factored = FactoredExecution::automatic;
    // Load and run these layers only, so that a model larger than memory can be worked on piecewise. Layers
    // whose attention is taken from an earlier layer need that layer in the range.
    std::optional<LayerRange> range = std::nullopt;
    // Sees the activations of every step.
    std::shared_ptr<const Observer> observer = nullptr;
    // ggml: devices of devices.h. torch: auto (a CUDA device where there is one), cpu or cuda. Empty: the
    // CPU with ggml, auto with torch.
    std::string device = "";
    EvictionOptions eviction = {};
    RopeOverride rope = {};  // in place of the model's own: see with_rope()
    // Most sequences open at a time; 0: as many as fit kv_tokens. Graphs and cache for a single sequence are
    // faster than those for several.
    int64_t sequences = 1;
    // Size of the KV cache that several sequences share; 0: `sequences` contexts, or
    // kDefaultContexts with sequences == 0.
    int64_t kv_tokens = 0;
    // Steps run one loop of a looped model (Topology::loops) at a time, so that rows can be at different
    // loops.
    bool by_loop = false;
    // Only so many of the model's last stored layers, and its output, are on `device`; the CPU has the
    // others. Below 0: all are.
    int64_t gpu_layers = -1;
    WorkerAccess workers = {};  // of `device`
    // Of another engine. Matrices that it holds in the same layout, byte by byte, are read there and not held
    // again; it may end first. For the ggml engine on the CPU; others hold all of theirs.
    std::shared_ptr<const ResidentWeights> resident = nullptr;
};

// The abilities and limits of an engine. Fixed when it is made.
struct Capabilities {
    std::string family;     // of the model, for messages
    int64_t sequences = 1;  // most open at a time
    int64_t context = 0;    // most tokens of one sequence
    int64_t kv_tokens = 0;  // most tokens of all sequences; each one takes the model's prefix as well
    int64_t max_rows = 0;   // of one step
    int64_t n_vocab = 0;
    int64_t n_embd = 0;
    int threads = 1;
    int32_t loops = 1;       // Row::loop is 0 to loops - 1; 1 without EngineOptions::by_loop
    bool exit_gate = false;  // steps by loop give StepOutput::exited
    bool causal = true;      // a decoder; false: an encoder, each step of which is one whole sequence
    std::optional<LayerRange> range;  // the layers that steps run; none: all
    bool logits = true;               // rows can ask for logits
    bool observed = false;            // steps show activations to EngineOptions::observer
    bool evicts = false;              // the KV cache has fewer rows than the context has tokens
    // A truncated sequence is what it would have been without the tokens removed. False if the engine evicts
    // (truncation to 0 only) or stretches the rotation.
    bool exact_truncation = true;
    bool stretches_rotation = false;  // StepInput::sequence_length affects results (dynamic NTK)
    bool adapters = false;            // sequences can have one: see Engine::add_adapter()

    // Whether rows of loop 0 have token ids; otherwise a step is given a residual stream.
    bool takes_tokens() const { return !range || range->first == 0; }
};

struct EngineMemory {
    uint64_t weight_bytes = 0;   // resident weights, each stored tensor once
    uint64_t kv_bytes = 0;       // the whole KV cache
    uint64_t compute_bytes = 0;  // activations, scratch and work buffers
    uint64_t shared_bytes = 0;   // weights read from EngineOptions::resident, not among weight_bytes
};

// The work of a step for one token of one sequence.
struct Row {
    enum class Work : uint8_t {
        run,        // the loop
        keys_only,  // only the loop's keys and values, from the residual stream as it is (CALM's propagation)
    };
    int32_t sequence = 0;
    int64_t position = 0;  // of the token in its sequence
    int32_t loop = 0;      // counted from 0
    int32_t token = -1;    // at loop 0; later loops continue from the residual stream of the one before
    Work work = Work::run;
    bool logits = false;  // wanted after this loop, through the final norm and the head
};

struct StepInput {
    // At most Capabilities::max_rows. Rows of the same sequence and loop lie next to each other, positions
    // ascending.
    std::span<const Row> rows;
    // [rows, n_embd]: the input of a range, in place of the tokens' embeddings.
    std::span<const float> residual = {};
    // Length of the whole sequence that the rows belong to, for engines that stretch the rotation; 0: up to
    // the last row.
    int64_t sequence_length = 0;
    // Encoders, by row. Mask: 1 for a token, 0 for padding, which no token attends to.
    std::span<const int32_t> token_types = {};  // empty: all 0
    std::span<const int32_t> mask = {};         // empty: all 1
};

// Views, valid until the next step.
struct StepOutput {
    std::span<const float> logits;  // [rows that asked, n_vocab], in the order of the rows
    // [rows, n_embd]: the residual stream after a range (empty if the observer has only_taps), or an
    // encoder's last hidden state.
    std::span<const float> hidden;
    std::span<const float> pooled;  // [n_embd] of an encoder with a pooler
    // [rows that asked]: the probability, by the model's own gate, that the token has exited by the row's
    // loop: 1 - prod (1 - gate) over the loops so far (Ouro, "Scaling Latent Reasoning via Looped Language
    // Models"). Empty without a gate.
    std::span<const double> exited = {};
    // [1]: how well the text answers another one, of an encoder with a head for it (sequence classification
    // with one label); empty without. Any number: greater is better.
    std::span<const float> score = {};
};

// A decoder's rows move through the loops one after the other. A row at a later loop than the first needs an
// earlier step at the loop before. At its loop it attends to all tokens before it, whose keys and values must
// exist: from earlier steps, from rows before it in the same step, or by share(). A token is complete when it
// has keys and values of all loops; its residual stream is dropped then. An encoder's step holds all tokens
// of one sequence, from position 0, and leaves nothing behind.
class Engine {
public:
    virtual ~Engine() = default;
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    const Capabilities& capabilities() const { return capabilities_; }

    // Reserves room for a new sequence of up to `tokens` tokens. Returns nothing while there is no room (a
    // sequence's rows are contiguous in the cache). Throws Error(usage) for more tokens than a context, or
    // than the cache can ever hold.
    virtual std::optional<int32_t> open(int64_t tokens) = 0;
    virtual void close(int32_t sequence) = 0;
    // Makes its room that of `tokens` tokens, at least as many as it has, where it lies. Returns false, with
    // nothing changed, when others lie in the way or the engine cannot.
    virtual bool resize(int32_t sequence, int64_t tokens);
    // Forgets the tokens from position `length` on. Throws Error(usage) when an engine that evicts would have
    // to forget some tokens, but not all.
    virtual void truncate(int32_t sequence, int64_t length) = 0;
    // Copies the first `tokens` complete tokens of `from` to `to`, which must be empty.
    virtual void copy(int32_t from, int32_t to, int64_t tokens) = 0;
    // Uses the token's keys and values of loop - 1 for `loop` and all later loops.
    virtual void share(int32_t sequence, int64_t position, int32_t loop) = 0;

    // Keys and values of tokens outside of the cache, as it has them: for an engine of the same model,
    // options and version of refold. All throw Error(unsupported) where the engine is not one for several
    // sequences (EngineOptions::sequences), and LostDevice.

    virtual uint64_t saved_bytes(int64_t tokens) const;
    // Gives `write` those of the first `tokens` complete tokens, saved_bytes() in all, piece by piece.
    virtual void save_tokens(int32_t sequence, int64_t tokens,
                             const std::function<void(std::span<const std::byte>)>& write) const;
    // Gives them to a sequence that is empty. Throws Error(input) for another number of bytes.
    virtual void load_tokens(int32_t sequence, int64_t tokens, std::span<const std::byte> saved);

    // Adapters: LoRA that the rows of some sequences add to the weights, which all share. Any mixture of
    // sequences with different adapters and without one can be in a step.

    // Copies the factors; returns the adapter's number. Throws Error(unsupported) where the engine takes
    // none, Error(input) for terms that do not fit the model.
    virtual int32_t add_adapter(const Adapter& adapter);
    // Throws Error(internal) for an adapter that an open sequence has.
    virtual void remove_adapter(int32_t adapter);
    // Of a sequence without tokens: its adapter from now on; -1: none, as after open(). A sequence is copied
    // to one with the same adapter.
    virtual void use_adapter(int32_t sequence, int32_t adapter);

    // Throws Error(input) for token ids outside the vocabulary, and for more tokens than the context of an
    // engine with a single sequence; Error(internal) for rows that may not run yet or that contradict the
    // capabilities. Nothing has changed then. LostDevice (devices.h).
    virtual StepOutput step(const StepInput& input) = 0;

    virtual int64_t kv_tokens_used() const = 0;  // reserved
    virtual EngineMemory memory() const = 0;
    // For EngineOptions::resident of an engine for a similar model; null where this one shares none, as on a
    // device.
    virtual std::shared_ptr<const ResidentWeights> resident_weights() const { return nullptr; }
    // Puts the worker threads to sleep until the next step, for measuring something else.
    virtual void pause() {}

protected:
    explicit Engine(const Capabilities& capabilities) : capabilities_(capabilities) {}

private:
    const Capabilities capabilities_;
};

// Copies the weights into the engine's own layout, so `model` may be released. Throws Error(usage) for
// options out of range; Error(unsupported) for options that do not go together, tensor types without kernels,
// an engine that this build lacks, and with `by_loop` for loops that differ in more than LoRA and norms.
std::unique_ptr<Engine> make_engine(const Model& model, const EngineOptions& options);

// Why an engine with these options cannot run several sequences of the model; empty if it can.
std::string obstacle_to_several_sequences(const Model& model, const EngineOptions& options);

// Whether steps by loop are faster even if all tokens run all loops: loops with their own LoRA, which one
// grouped product adds to the block's. False for models that cannot run by loop.
bool faster_by_loop(const Model& model);

// Most rows of a step that should ask for logits: 64 MB of them, at least 16.
size_t logits_of_step(int64_t n_vocab);

}  // namespace refold
