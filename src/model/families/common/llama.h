// Common to Llama and the families that differ from it in configuration only: RMSNorm before each module,
// rotary positions, grouped-query attention, gated FFN, optional biases.
#pragma once

#include <vector>

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold {

// `of_heads` is the layout of queries and keys: hf_rotary where a checkpoint rotates halves and GGUF pairs.
std::vector<SlotDescription> llama_layer_slots(unsigned of_heads);
std::vector<SlotDescription> llama_model_slots();
// Fields attention_bias and mlp_bias of a model that did not come from Hugging Face.
void biases_to_hf(const Model& model, nlohmann::json& out);

}  // namespace refold
