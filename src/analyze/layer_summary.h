// Summary statistics of a matrix of layer similarities, as in UniAttn's appendix C.
#pragma once

#include "analyze/matrix.h"

namespace refold {

// Statistics over pairs of different layers; undefined when there is no pair.
struct LayerSummary {
    double average = kUndefined, maximum = kUndefined, minimum = kUndefined;
    double deviation = kUndefined;                           // standard deviation over pairs
    double top_half = kUndefined, bottom_half = kUndefined;  // averages over pairs within a half; the
                                                             // middle layer belongs to the top half
    double difference() const { return top_half - bottom_half; }
};
LayerSummary summarize(const SquareMatrix& layers);

}  // namespace refold
