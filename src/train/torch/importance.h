#pragma once

#include "train/importance.h"

namespace refold {

// Implements taylor_importance() in the library.
Importance importance_by_gradients(const ImportanceRequest& request);

}  // namespace refold
