// How much a model's predictions depend on each of its matrices.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compress/training/divergence.h"
#include "fit/candidates.h"

namespace refold {

// Mean Kullback-Leibler divergences of the next token, in nats, of models from an original over sequences of
// tokens. All must have the same vocabulary.
class Divergence {
public:
    // Processes of group() share the sequences, and all get the result; or this one works on all of them.
    enum class Over { group, process };
    // Runs the original, which must outlive this object.
    Divergence(const Model& original, const std::vector<std::vector<int32_t>>& sequences, int threads,
               Over over = Over::group);
    double of(const Model& model) const;

private:
    double mean_of(const Model& model) const;

    const Model& original_;
    std::vector<std::vector<int32_t>> own_;  // of this process
    double tokens_ = 0;
    int threads_;
    Over over_;
    std::optional<HeldOutDivergence> streams_;
};

// By tensor of `candidates`: the divergence that its kProbe alone causes, over the first `tokens` tokens of
// the calibration text in sequences of at most 256. What a whole table causes is shared out to its parts as
// their errors are. For matrices of layers from the final residual stream and the Fisher information of the
// next token (NextTokenMetric), so that only the layers from the matrix on are run; for tables from the
// predictions themselves. Kept in the work folder.
std::vector<double> sensitivities(const Model& model, const Candidates& candidates, const Measurement& on,
                                  int64_t tokens);

}  // namespace refold
