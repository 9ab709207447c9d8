// Which fields of config.json may be left unread.
#pragma once

#include "model/families/common/hf_config.h"
#include "model/family.h"

namespace refold {

// A field that nobody has asked `config` for may change what the model computes: throws Error(unsupported)
// naming it, unless it is null, or known to change nothing (always, or with the value that it has).
void check_fields(const HfConfig& config, const Family& family);

}  // namespace refold
