// Common to Qwen2 and its successors: Llama with rotation by halves, and windows on the upper
// layers where the checkpoint uses them.
#pragma once

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"
#include "model/stock.h"

namespace refold {

// The slots of both; `of_attention` are those that only the family has, between attention and FFN.
std::vector<SlotDescription> qwen_layer_slots(const std::vector<SlotDescription>& of_attention);
// What describes windows that "use_sliding_window" leaves unused.
std::vector<UnreadField> qwen_unread();
ModelConfig read_qwen_config(const FamilyKeys& keys);
// Rotation and windows.
void finish_qwen_config(const FamilyKeys& keys, ModelConfig& config);
void qwen_from_hf(const HfConfig& config, FamilyWriter& out);
nlohmann::json qwen_to_hf(const Model& model, const char* architecture, const char* model_type);
StockModel qwen_to_stock(const Model& model);

}  // namespace refold
