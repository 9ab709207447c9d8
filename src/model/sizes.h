// Sizes of layers that differ from the architecture's keys, and prefixes, as they are stored.
#pragma once

#include <cstddef>
#include <string>

#include "model/config.h"

namespace refold {

// config.heads_kv, ffs, alibi_heads and n_prefix as the JSON of the key "refold.sizes"; empty when all have
// their defaults. Parsing throws Error(input) for sizes that do not fit the configuration.
std::string sizes_to_json(const ModelConfig& config);
void sizes_from_json(const std::string& json, size_t layers, ModelConfig& config);

}  // namespace refold
