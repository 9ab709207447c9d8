// Common to Gemma 1, 2 and 3 (text): scaled embeddings, RMSNorm by 1 + weight, GeGLU, heads wider
// than n_embd / n_head.
#pragma once

#include <vector>

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/stock.h"

namespace refold {

ModelConfig read_gemma_config(const FamilyKeys& keys);
inline constexpr HfFields kGemmaFields = {.activation = "hidden_activation"};
// config.json -> the keys that all have.
void write_gemma_keys(const HfConfig& config, const HfFields& fields, FamilyWriter& out);
// A soft cap of scores or logits; null: none.
void write_soft_cap(const HfConfig& config, const char* field, FamilyWriter& out);
// query_pre_attn_scalar, where it does not give the usual scale.
void write_gemma_scale(const HfConfig& config, const char* family, GgufMetadata& metadata, FamilyWriter& out);
nlohmann::json gemma_to_hf(const Model& model, const char* architecture, const char* model_type);
// Fields query_pre_attn_scalar, sliding_window and layer_types.
void gemma_windows_to_hf(const Model& model, nlohmann::json& out);
// llama.cpp knows no other scale than the usual one: any other is moved into the queries.
StockModel gemma_to_stock(const Model& model);

std::vector<SlotDescription> gemma_layer_slots(bool post_norms, bool head_norms);
std::vector<SlotDescription> gemma_model_slots();

}  // namespace refold
