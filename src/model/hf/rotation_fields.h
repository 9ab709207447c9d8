// The fields of config.json that describe the rotation of queries and keys, in one form.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace refold {

// `defaults`: the fields of transformers' class, with defaults. Afterwards `config` has rope_theta,
// rope_scaling, partial_rotary_factor and rope_local_base_freq as far as it said them: transformers 5 has all
// of them in rope_parameters, GPT-NeoX has rotary_emb_base and rotary_pct. Throws Error(unsupported) where
// they say two things, of which versions of transformers take one each.
void unite_rotation_fields(nlohmann::json& config, const nlohmann::json& defaults);

}  // namespace refold
