#pragma once

#include "train/range_fit.h"

namespace refold {

// Implements fit_ranges() in the library.
RangeFitResult fit_by_gradients(const RangeFitRequest& request);

}  // namespace refold
