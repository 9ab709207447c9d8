// Which fields of config.json may be left unread.
#pragma once

#include "model/families/common/hf_config.h"
#include "model/family.h"
#include "model/hf/readable_config.h"

namespace refold {

// Throws Error(unsupported) naming a field that may change what the model computes: transformers reads it and
// nobody has asked `config` for it, or transformers' class does not have it - unless it is null, or known to
// change nothing (always, or with the value that it has). Throws Error(input) for one that must not be null.
void check_fields(const HfConfig& config, const ReadableConfig& readable, const Family& family);

// The same for the configuration around a text model's, whose other parts are not read.
void check_fields_of_whole(const nlohmann::json& whole);

}  // namespace refold
