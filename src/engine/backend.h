// What an engine implements: steps of the forward pass over one sequence.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace refold {

struct StepInput {
    std::span<const int32_t> tokens;
    std::span<const int32_t> positions;    // of the tokens, for rotation and learned positions
    std::span<const int32_t> token_types;  // empty: all 0
    std::span<const int32_t> mask;         // encoders: 0 hides the token from all; empty: none hidden
    int64_t past = 0;                      // tokens of the cache that stay; the new ones follow them
    int64_t outputs = 0;                   // how many of the last tokens' results are wanted
    int64_t sequence_length = 0;           // of the sequence that this step is part of (dynamic rotation)
    std::span<const float> residual = {};  // [tokens, n_embd]: what a range begins with, in place of tokens

    int64_t count() const { return static_cast<int64_t>(positions.size()); }
};

class Backend {
public:
    virtual ~Backend() = default;
    // Logits [outputs, n_vocab] of a decoder, valid until the next call.
    virtual std::span<const float> step(const StepInput& input) = 0;
    virtual Encoding encode(const StepInput& input) = 0;
    // Residual stream behind EngineOptions::range [tokens, n_embd], valid until the next call.
    virtual std::span<const float> range_step(const StepInput& input) = 0;
    virtual EngineMemory memory() const = 0;
    virtual void pause() {}
};

// Complete. Throws Error(usage) for options out of range.
EngineOptions checked_options(EngineOptions options, const ModelConfig& config);

// `options` are checked and complete.
std::unique_ptr<Backend> make_ggml_backend(const Model& model, const EngineOptions& options);
// Throws Error(unsupported) in a build without libtorch.
std::unique_ptr<Backend> make_torch_backend(const Model& model, const EngineOptions& options);

}  // namespace refold
