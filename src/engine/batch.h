// Inference of many sequences at once: one step runs rows of any of them, at any depth. By the ggml engine,
// for decoders.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/engine.h"

namespace refold {

struct BatchOptions {
    // context: most tokens of one sequence; chunk: most rows of a step. Kind, range, observer and eviction
    // must be as they are by default.
    EngineOptions engine;
    int64_t kv_tokens = 0;  // tokens of all sequences together that the KV cache holds; 0: 8 contexts
    // A stage is one loop of a looped model (Topology::loops), else there is one stage, all positions.
    bool by_depth = false;
};

// What a step does for one token of one sequence.
struct BatchRow {
    enum class Work : uint8_t {
        run,        // the stage
        keys_only,  // the stage's keys and values, from the residual stream as it is (CALM's propagation)
    };
    int32_t sequence = 0;
    int64_t position = 0;  // of the token in its sequence
    int32_t stage = 0;
    int32_t token = -1;  // stage 0; behind it the row goes on with the residual stream it left
    Work work = Work::run;
    bool logits = false;  // behind this stage, through the final norm and the head
};

// Rows move through the stages one after the other. A row of stage s > 0 needs a step at s - 1 before, and
// attends at its stage to the keys and values of all tokens before it, which must be there: from earlier
// steps, from rows before it in the same step, or by share(). A token is complete when it has keys and values
// of all stages; its residual stream is forgotten then.
class BatchEngine {
public:
    virtual ~BatchEngine() = default;

    // Reserves room for so many tokens; nothing when there is none at present (tokens of one sequence lie
    // together, so it may need one piece). Throws Error(usage) for more than a context or than there ever is.
    virtual std::optional<int32_t> open(int64_t tokens) = 0;
    virtual void close(int32_t sequence) = 0;
    // Forgets the tokens from `length` on.
    virtual void truncate(int32_t sequence, int64_t length) = 0;
    // The first `tokens` complete tokens of `from` become those of `to`, an empty sequence.
    virtual void copy(int32_t from, int32_t to, int64_t tokens) = 0;
    // The token's keys and values of `stage` and all later ones are those of stage - 1.
    virtual void share(int32_t sequence, int64_t position, int32_t stage) = 0;

    // At most max_rows() rows; those of one sequence and stage in the order of their positions, next to each
    // other. Returns the logits [rows that asked, n_vocab] in the order of the rows, valid until the next
    // call. Throws Error(input) for ids outside the vocabulary, Error(internal) for rows that may not run
    // yet.
    virtual std::span<const float> step(std::span<const BatchRow> rows) = 0;

    virtual int32_t stages() const = 0;
    virtual int64_t max_rows() const = 0;
    virtual int64_t context() const = 0;
    virtual int64_t kv_tokens() const = 0;       // in all
    virtual int64_t kv_tokens_used() const = 0;  // reserved
    virtual int64_t n_vocab() const = 0;
    virtual int threads() const = 0;
    virtual EngineMemory memory() const = 0;

    // Lets the worker threads sleep (between benchmark rounds of another engine).
    virtual void pause() {}
};

// Rows of a step whose logits take 64 MB, at least 16: more should not be asked for at a time.
size_t logits_of_step(int64_t n_vocab);

// Throws as Engine does, and Error(unsupported) for encoders, for a rotation that is stretched within the
// context (dynamic NTK), and with `by_depth` for loops that differ in more than LoRA and norms.
std::unique_ptr<BatchEngine> make_batch_engine(const Model& model, const BatchOptions& options);

// Whether steps by depth pay where all tokens run all loops: loops that differ in LoRA, which one grouped
// product adds to the block's; as one stage the LoRA of every position is multiplied by itself. False for
// what cannot run by depth.
bool faster_by_depth(const Model& model);

}  // namespace refold
