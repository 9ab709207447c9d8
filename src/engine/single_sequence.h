// One sequence of an engine: texts and activations of any length, run in steps.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace refold {

// The input of an encoder.
struct EncoderInput {
    std::span<const int32_t> tokens;
    std::span<const int32_t> token_types;  // empty: all 0
    std::span<const int32_t> mask;         // 1: token, 0: padding, which no token attends to; empty: all 1
};

struct Encoding {
    std::vector<float> last_hidden_state;  // [tokens, n_embd]
    std::vector<float> logits;             // [tokens, n_vocab]; empty without a language-model head
    std::vector<float> pooled;             // [n_embd]; empty without a pooler
    std::optional<float> score = {};       // see StepOutput
};

class SingleSequence {
public:
    // Makes an engine for this sequence. Throws as make_engine().
    SingleSequence(const Model& model, const EngineOptions& options);
    // A sequence of an engine that outlives it and has room for one more. Throws Error(internal) without
    // room, and for engines that run loop by loop.
    explicit SingleSequence(Engine& engine);
    ~SingleSequence();
    SingleSequence(const SingleSequence&) = delete;
    SingleSequence& operator=(const SingleSequence&) = delete;

    // Appends `tokens` and returns the logits [n_vocab] after the last one, valid until the next call. Throws
    // Error(usage) for no tokens and for encoders, Error(input) for ids outside the vocabulary and for more
    // tokens than the context holds, Error(unsupported) for a model without an output layer.
    std::span<const float> evaluate(std::span<const int32_t> tokens);
    // As evaluate(), with the logits after every token from the `from`-th of this call on: `sink(first,
    // logits)` gets logits [rows, n_vocab] of the tokens first, first + 1, ... of this call.
    using RowsSink = std::function<void(size_t first, std::span<const float> rows)>;
    void evaluate_all(std::span<const int32_t> tokens, const RowsSink& sink, size_t from = 0);

    // Runs EngineOptions::range on the residual stream before it, [tokens, n_embd], of tokens that are
    // appended to the sequence. `sink` gets the residual stream after the range, or no rows if the observer
    // has only_taps; `first` counts tokens of this call.
    void evaluate_range(std::span<const float> residual, const RowsSink& sink);
    // From tokens, for a range that begins at layer 0; an empty range gives their embeddings.
    void evaluate_range(std::span<const int32_t> tokens, const RowsSink& sink);

    // Runs a whole sequence through an encoder. Throws Error(usage) for a decoder, Error(input) for ids,
    // types or lengths that do not fit.
    Encoding encode(const EncoderInput& input);

    // Forgets all tokens after the first `length`. Throws Error(usage) for more tokens than there are, and as
    // Engine::truncate().
    void truncate(int64_t length);
    int64_t length() const { return length_; }

    Engine& engine() { return engine_; }
    const Capabilities& capabilities() const { return engine_.capabilities(); }
    EngineMemory memory() const { return engine_.memory(); }
    void pause() { engine_.pause(); }

private:
    void check_tokens(std::span<const int32_t> tokens) const;
    void check_room(size_t tokens) const;
    void check_evaluates() const;
    // Runs the next tokens; those from `first_logits` on ask for logits.
    StepOutput step(std::span<const int32_t> tokens, size_t first_logits, int64_t sequence_length);
    StepOutput step(const StepInput& input);
    void add_rows(size_t count);

    std::unique_ptr<Engine> own_;  // null for an engine of someone else
    Engine& engine_;
    int32_t id_;
    int64_t length_ = 0;
    std::vector<Row> rows_;  // of a step
};

}  // namespace refold
