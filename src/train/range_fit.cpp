#include "train/range_fit.h"

#include "engine/torch/plugin.h"

namespace refold {

RangeFitResult fit_ranges(const RangeFitRequest& request) {
    auto* const function = reinterpret_cast<RangeFitFunction*>(torch_plugin::find(kRangeFitSymbol));
    RangeFitResult result;
    function(request, result);
    return result;
}

}  // namespace refold
