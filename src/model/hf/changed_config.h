// The source's config.json for a model that methods have changed.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "model/model.h"

namespace refold {

// `config` with the sizes of `model`, whose layers are all alike. `before`: what it describes now. Other
// fields stay as they are. Throws Error(unsupported) for key/value heads that it has no field for.
nlohmann::json changed_config(nlohmann::json config, const ModelConfig& before, const Model& model);

// Lists windows and rotation layer by layer, where `read` from config.json differs from the model. Returns
// whether anything was changed.
bool set_layer_kinds(const ModelConfig& read, const Model& model, nlohmann::json& config);

// A field of config.json announces the biases of a module for all layers and all of its maps. So where some
// have a bias the others get one of zeros.
Model with_announced_biases(const Model& model);
// Sets these fields. Throws Error(unsupported) naming a layer where transformers has no field for its biases.
void announce_biases(const Model& model, nlohmann::json& config);

}  // namespace refold
