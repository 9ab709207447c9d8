// Common to Cohere (Command R) and Cohere 2 (Command R7B): one LayerNorm without bias feeds attention and
// FFN, which run in parallel; rotation of neighboring pairs; scaled logits.
#pragma once

#include <vector>

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/stock.h"

namespace refold {

ModelConfig read_cohere_config(const FamilyKeys& keys);
void cohere_from_hf(const HfConfig& config, FamilyWriter& out);
nlohmann::json cohere_to_hf(const Model& model, const char* architecture, const char* model_type);
// Throws Error(unsupported) for what llama.cpp has in neither family.
void check_cohere_stock(const Model& model);

std::vector<SlotDescription> cohere_layer_slots();

}  // namespace refold
