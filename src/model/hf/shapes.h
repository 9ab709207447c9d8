// Models from config.json alone: every tensor's name, shape and type, and no weights. So the
// result of a method can be planned and counted without the checkpoint.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// A .json file, or a directory with config.json in which nothing looks like weights.
bool is_bare_config(const std::string& path);

// The model that `path` describes (see is_bare_config()), with Model::shapes_only: the tensors that a
// checkpoint of this config.json has, as load_hf_model() would type them (matrices by torch_dtype, F32 when
// it says nothing; norms and biases F32). Reading one throws Error(input), except for the factors of Llama
// 3's rotation, which config.json gives.
// Throws Error(io), Error(input), Error(unsupported) naming file and field.
Model load_hf_shapes(const std::string& path);

}  // namespace refold
