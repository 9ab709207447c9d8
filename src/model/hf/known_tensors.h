// Which tensors of a checkpoint may be left unread.
#pragma once

#include <string>

#include "model/family.h"

namespace refold {

// Whether a tensor is known to change nothing that refold computes: what config.json gives anyway, masks,
// heads of other tasks, and the other parts of a model of which the text model `is_part`.
bool changes_nothing(const std::string& tensor, const Family& family, bool is_part);

}  // namespace refold
