#include "train/range_fit.h"

#include "engine/torch/plugin.h"

namespace refold {

RangeFitResult fit_ranges(const RangeFitRequest& request) {
    return torch_plugin::ask<RangeFitResult>(kRangeFitSymbol, request);
}

}  // namespace refold
