// How much a model's predictions depend on each of its matrices.
#pragma once

#include <cstdint>
#include <vector>

#include "fit/candidates.h"

namespace refold {

// Mean Kullback-Leibler divergence of the next token, in nats, of `model` from `original` over sequences of
// tokens. Both must have the same vocabulary. Processes of group() share the sequences, and all get the
// result.
double divergence(const Model& original, const Model& model,
                  const std::vector<std::vector<int32_t>>& sequences, int threads);

// By tensor of `candidates`: the divergence that its kProbe alone causes, over the first `tokens` tokens of
// the calibration text in sequences of at most 256. What a whole table causes is shared out to its parts as
// their errors are. For matrices of layers from the final residual stream and the Fisher information of the
// next token (NextTokenMetric), so that only the layers from the matrix on are run; for tables from the
// predictions themselves. Kept in the work folder.
std::vector<double> sensitivities(const Model& model, const Candidates& candidates, const Measurement& on,
                                  int64_t tokens);

}  // namespace refold
