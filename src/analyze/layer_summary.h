// A matrix of layer similarities in a few numbers, as UniAttn's appendix C gives them.
#pragma once

#include "analyze/matrix.h"

namespace refold {

// Over pairs of different layers; undefined where there is no pair.
struct LayerSummary {
    double average = kUndefined, maximum = kUndefined, minimum = kUndefined;
    double deviation = kUndefined;                           // standard deviation over pairs
    double top_half = kUndefined, bottom_half = kUndefined;  // averages of pairs within a half; a middle
                                                             // layer belongs to the top one
    double difference() const { return top_half - bottom_half; }
};
LayerSummary summarise(const SquareMatrix& layers);

}  // namespace refold
