// Runs a text through a model once and collects all requested statistics of activations.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "analyze/attention_maps.h"
#include "analyze/module_similarity.h"

namespace refold {

struct PassOptions {
    int threads = 0;   // 0: all cores
    bool f32 = false;  // float32 weights and activations
    // Tokens per step. The attention maps of one step's tokens in all layers are in memory at a time.
    int64_t step_tokens = 128;
};

// Throws Error(unsupported) for an encoder, whose norms follow the residual stream.
void need_decoder_for_modules(const Model& model);

// Runs each sequence separately, in steps of options.step_tokens tokens (an encoder: the whole sequence), so
// that only one step's activations are in memory. The processes of group() split the sequences, and all get
// the statistics of all sequences. Either collector may be null. Throws as
// need_decoder_for_modules() and make_engine() do.
void run_text(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
              const PassOptions& options, AttentionMaps* maps, ModuleSimilarities* modules);

}  // namespace refold
