// Measures an importance matrix: the inputs of every matrix of a model on a calibration text.
#pragma once

#include "calibrate/calibration.h"
#include "compress/quantization/importance_matrix.h"

namespace refold {

// Runs all sequences, those held out too, through the model layer by layer, with float32 activations. A
// tensor that several slots use gets the sum of its uses, and a count of them all: the mean over uses. Of a
// tensor of which an attn.o takes some heads, the other columns get nothing from that use. Factors: U and V
// of LowRank; none for those whose inputs belong to rows (transposed LowRank) and for Tucker, which a matrix
// by columns cannot describe. The processes of group() share the sequences. Throws Error(unsupported) for
// encoders, Error(input) naming the tensor whose inputs are not finite, and on an interrupt.
ImportanceMatrix measure_importance(const Model& model, const Calibration& calibration, int threads);

}  // namespace refold
