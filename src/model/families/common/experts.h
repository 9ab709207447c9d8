// Common to families with mixtures of experts.
#pragma once

#include <string>
#include <vector>

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold {

// Sizes, context, norm, activation and attention scale, as read_common(), with the keys of experts, if there
// are any. Softmax over the chosen experts is usual (`normalized`).
ModelConfig read_mixture(const FamilyKeys& keys, Activation activation, bool normalized);

// Fields of config.json.
struct ExpertFields {
    const char* experts;  // their number
    const char* width = "intermediate_size";
};
void write_experts(const HfConfig& config, const ExpertFields& fields, FamilyWriter& out);
// Field norm_topk_prob (false unless given), where it differs from what the family's files mean.
void write_expert_norm(const HfConfig& config, bool usual, FamilyWriter& out);
void experts_to_hf(const Model& model, const ExpertFields& fields, nlohmann::json& out);

// Names in a checkpoint, as SlotDescription::hf; layouts of gate and up, and of down.
struct ExpertNames {
    const char *router, *gate, *up, *down;
    unsigned stacked = hf_plain, down_layout = hf_plain;
};
std::vector<SlotDescription> expert_slots(const ExpertNames& names);
// A family's slots with experts in place of the FFN, or beside it where layers have either.
std::vector<SlotDescription> with_experts(std::vector<SlotDescription> slots,
                                          const std::vector<SlotDescription>& experts, bool beside_ffn);

// Throws Error(unsupported) for mixtures that stock llama.cpp does not have in this family: layers without
// experts, or weights over other experts than `normalized` says.
void check_mixture_in_stock(const Model& model, bool normalized);

}  // namespace refold
