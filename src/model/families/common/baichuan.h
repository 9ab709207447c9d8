// Common to Baichuan 1 and 2: Llama with Q, K and V in one checkpoint tensor; the 13B models have
// ALiBi instead of rotation.
#pragma once

#include <vector>

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold {

inline constexpr const char* kBaichuan = "baichuan";
inline constexpr const char* kBaichuan2 = "baichuan2";  // ours: llama.cpp has no NormHead

ModelConfig read_baichuan_config(const FamilyKeys& keys);
// The versions share their model_type: sets general.architecture to the version that config.json describes.
void baichuan_from_hf(const HfConfig& config, GgufMetadata& metadata);
nlohmann::json baichuan_to_hf(const Model& model);
// Throws Error(unsupported) where stock llama.cpp, which goes by the number of layers, would compute the
// wrong positions.
void check_baichuan_stock(const Model& model);

std::vector<SlotDescription> baichuan_layer_slots();
std::vector<SlotDescription> baichuan_model_slots();

}  // namespace refold
