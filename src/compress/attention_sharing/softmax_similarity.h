// Similarity of the layers' attention probabilities on a text.
#pragma once

#include "compress/attention_sharing/superblocks.h"
#include "compress/method/work.h"

namespace refold {

// See Computation: raise the version when softmax_similarity() gives other numbers.
inline constexpr Computation kSoftmaxSimilarity{"softmax similarity", 2};

// For each layer and each earlier one: the cosine of the attention probabilities of a sequence, those of all
// heads and tokens as one vector, as the mean over sequences (UniAttn, section 3.1; as in `analyze`). 0 for
// layers that compute no probabilities, and for different numbers of heads. Runs the whole model in its
// stored types; activations of a few tokens of one sequence are in memory. Throws what Engine throws.
LayerSimilarity softmax_similarity(const Model& model, const Calibration& calibration, int threads);

}  // namespace refold
