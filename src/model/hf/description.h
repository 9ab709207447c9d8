// config.json as the start of a model, with or without a checkpoint beside it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "model/model.h"

namespace refold {

struct HfDescription {
    std::string text;       // of config.json
    nlohmann::json fields;  // of config.json, in the older form: see with_older_fields()
    Model model;            // label, family, metadata and hyper-parameters; no tensors, no topology
    size_t layers = 0;
    bool tied = false;  // the output is the embedding again
};

// `folder` names the model. Throws Error(io), Error(input) for what config.json lacks, Error(unsupported) for
// a model_type without a family.
HfDescription read_hf_description(const std::string& config_file, const std::string& folder);

// The factors of Llama 3's rope_scaling as a tensor; nothing for other scalings.
void add_rope_factors(HfDescription& description);

}  // namespace refold
