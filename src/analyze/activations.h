// One pass of a text through a model, for all statistics of activations that are wanted.
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
    // Tokens of a step: attention maps of as many tokens of all layers are in memory at a time.
    int64_t piece = 128;
};

// Throws Error(unsupported) for an encoder: its activations are not looked at.
void need_decoder(const Model& model);

// The processes of group() share the sequences, and all get what all have seen.
// Runs every sequence by itself, in pieces, so that activations of no more than a piece are in memory. Either
// collector may be null. Throws as need_decoder(), what Engine throws otherwise.
void run_text(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
              const PassOptions& options, AttentionMaps* maps, ModuleSimilarities* modules);

}  // namespace refold
