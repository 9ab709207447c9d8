// config.json as the start of a model, with or without a checkpoint beside it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"

namespace refold {

struct HfDescription {
    std::string text;       // of config.json; none where the model is a part of what it describes
    nlohmann::json fields;  // of config.json, in the older form: see with_older_fields()
    Model model;            // label, family, metadata and hyper-parameters; no tensors, no topology
    size_t layers = 0;      // that are stored
    size_t repeats = 1;     // every stored layer runs so often, one time right after the other (MobileLLM)
    size_t loops = 1;       // all of them run so often (Ouro)
    bool tied = false;      // the output is the embedding again
};

// The topology of a checkpoint whose tensors `description.model` has.
Topology described_topology(const HfDescription& description);

// `folder` names the model. Throws Error(io), Error(input) for what config.json lacks, Error(unsupported) for
// a model_type without a family.
HfDescription read_hf_description(const std::string& config_file, const std::string& folder);

// The factors of rope_scaling (Llama 3, LongRoPE) as tensors; nothing for scalings without.
// Throws Error(input) naming the field, Error(unsupported) where the family has no slot for them.
void add_rope_factors(HfDescription& description);

}  // namespace refold
