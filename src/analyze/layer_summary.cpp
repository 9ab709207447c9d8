#include "analyze/layer_summary.h"

#include <cmath>

#include "analyze/statistics.h"

namespace refold {

LayerSummary summarize(const SquareMatrix& layers) {
    RunningMean all, top, bottom;
    LayerSummary out;
    const size_t half = layers.size() / 2;
    for (size_t i = 0; i < layers.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            const double value = layers(i, j);
            if (std::isnan(value)) continue;
            all.add(value);
            if (j >= half) top.add(value);
            if (i < half) bottom.add(value);
            // fmax and fmin ignore NaN.
            out.maximum = std::fmax(out.maximum, value);
            out.minimum = std::fmin(out.minimum, value);
        }
    }
    out.average = all.mean();
    out.deviation = all.deviation();
    out.top_half = top.mean();
    out.bottom_half = bottom.mean();
    return out;
}

}  // namespace refold
