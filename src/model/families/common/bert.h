// Common to BERT and RoBERTa: encoders with norms after each residual sum, learned positions, token
// types and exact GELU; an optional masked-language-model head, pooler, and score of the pooled vector.
#pragma once

#include <string>
#include <vector>

#include "model/families/common/gguf_keys.h"
#include "model/families/common/hf_config.h"

namespace refold {

inline constexpr const char* kBert = "bert";

ModelConfig read_encoder_config(const FamilyKeys& keys);
void encoder_from_hf(const HfConfig& config, const char* family, GgufMetadata& metadata);
// `name`: of the classes in transformers, "Bert".
nlohmann::json encoder_to_hf(const Model& model, const char* model_type, const std::string& name);

// llama.cpp runs encoders for embeddings.
Model without_heads(const Model& model);
inline constexpr const char* kEncoderNote =
    "llama.cpp runs encoders for embeddings: the language-model head, the pooler and the score are left out";

std::vector<SlotDescription> encoder_layer_slots();
// Of a pooler that nobody builds, and of other programs.
std::vector<UnreadField> encoder_unread();
// Names of the masked-language-model head's tensors in the checkpoint.
struct EncoderHeadNames {
    const char* dense;
    const char* dense_bias;
    const char* norm;
    const char* norm_bias;
    const char* output;
    const char* output_bias;
};
std::vector<SlotDescription> encoder_model_slots(const EncoderHeadNames& head);

}  // namespace refold
