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
// The descriptions but those of biases, or of the FFN's biases alone.
std::vector<SlotDescription> without_biases(std::vector<SlotDescription> slots);
std::vector<SlotDescription> without_ffn_biases(std::vector<SlotDescription> slots);
// RMS norms over the queries and over the keys of all heads at once.
std::vector<SlotDescription> norms_of_all_heads();
// Norms of what attention and FFN add, by their names in checkpoints.
std::vector<SlotDescription> post_norms(const char* attention, const char* ffn);
// Fields attention_bias and mlp_bias of a model that did not come from Hugging Face.
void biases_to_hf(const Model& model, nlohmann::json& out);

}  // namespace refold
