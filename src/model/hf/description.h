// config.json as the start of a model, with or without a checkpoint beside it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"

namespace refold {

struct HfDescription {
    std::string text;       // of config.json; none where the model is a part of what it describes
    bool is_part = false;   // the text model of one that also sees or hears
    nlohmann::json fields;  // of config.json, with defaults: see readable_config()
    Model model;            // label, family, metadata and hyper-parameters; no tensors, no topology
    size_t layers = 0;      // that are stored
    size_t repeats = 1;     // every stored layer runs so often, one time right after the other (MobileLLM)
    size_t loops = 1;       // all of them run so often (Ouro)
    bool tied = false;      // the output is the embedding again
    // The checkpoint has these, in all layers.
    bool attention_biases = false, ffn_biases = false, head_norms = false;
};

// Whether config.json says that the checkpoint has the slot's tensor. Not for heads, poolers and scores of
// encoders.
bool is_announced(const SlotDescription& slot, const HfDescription& description);

// The topology of a checkpoint whose tensors `description.model` has.
Topology described_topology(const HfDescription& description);

// `folder` names the model. Throws Error(io), Error(input) for what config.json lacks, Error(unsupported) for
// a model_type without a family.
HfDescription read_hf_description(const std::string& config_file, const std::string& folder);

// The factors of rope_scaling (Llama 3, LongRoPE) as tensors; nothing for scalings without.
// Throws Error(input) naming the field, Error(unsupported) where the family has no slot for them.
void add_rope_factors(HfDescription& description);

}  // namespace refold
