// Token by token generation, for `run` and `chat`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

namespace refold::cli {

struct GenerationOptions {
    int64_t limit = 128;  // tokens
    bool ignore_eos = false;
};

struct Generation {
    std::string text;
    std::vector<int32_t> tokens;
    const char* stop_reason = "limit";  // or "end" (end of generation token), "context" (full)
    double prefill_seconds = 0;         // from the call to the logits after the prompt
    double decode_seconds = 0;          // of all further tokens
    size_t evaluated = 0;               // tokens of the prompt

    double prefill_tokens_per_s() const;
    double decode_tokens_per_s() const;  // 0 with fewer than two tokens
};

// Appends `prompt`, which fits the context, to the engine's sequence and generates. `emit` gets whole
// characters. Of the generated tokens all but the last are in the engine's sequence afterwards.
Generation generate(Engine& engine, Sampler& sampler, const Tokenizer& tokenizer,
                    std::span<const int32_t> prompt, const GenerationOptions& options,
                    const std::function<void(std::string_view)>& emit);

}  // namespace refold::cli
