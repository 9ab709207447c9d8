// config.json in one form: every version of transformers writes some fields in its own way.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace refold {

struct ReadableConfig {
    // What config.json says: other names of a field are replaced, and what describes the rotation is in
    // rope_theta, rope_scaling (with rope_type), partial_rotary_factor and rope_local_base_freq.
    nlohmann::json given;
    // The same with transformers' defaults of absent fields.
    nlohmann::json fields;
    std::set<std::string> known;     // the fields that transformers' class has
    std::set<std::string> not_null;  // those of them that must not be null
};

// `config` has a model_type that a family reads. A part of a larger configuration may leave out its sizes.
// Throws Error(input) for fields that contradict each other, Error(unsupported) where versions of
// transformers disagree about what they mean.
ReadableConfig readable_config(nlohmann::json config, bool is_part);

}  // namespace refold
