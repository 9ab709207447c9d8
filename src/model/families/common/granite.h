// Common to Granite 3 with and without experts: Llama with four multipliers: of embeddings, attention scores,
// what modules add to the residual stream, and logits.
#pragma once

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold {

// Rotation and multipliers.
void read_granite_multipliers(const FamilyKeys& keys, ModelConfig& config);
void granite_from_hf(const HfConfig& config, FamilyWriter& out);
nlohmann::json granite_to_hf(const Model& model, const char* architecture, const char* model_type);

}  // namespace refold
