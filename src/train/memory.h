// The memory that a training run takes in each process.
#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"
#include "train/options.h"

namespace refold {

// Bytes of a process, of the one with the most, without activations and what libraries keep.
struct TrainMemory {
    uint64_t weights = 0;    // of all tensors, trained or not
    uint64_t gradients = 0;  // at most at a time, with the buffers in which they are summed
    uint64_t optimizer = 0;  // its state, master weights, and the best weights where these are kept

    uint64_t total() const { return weights + gradients + optimizer; }
};

// In float32, of the gradients that several processes sum at once; a larger tensor has its own buffer.
inline constexpr int64_t kGradientBucketBytes = 25 << 20;

// Numbers of a model's tensors.
struct TrainSizes {
    uint64_t trained_matrices = 0, trained_vectors = 0, frozen_matrices = 0, frozen_vectors = 0;
    uint64_t largest = 0;  // of the trained ones

    uint64_t trained() const { return trained_matrices + trained_vectors; }
};
// `selection` as of trained_tensors(), which throws for it.
TrainSizes train_sizes(const Model& model, const std::string& selection);

// What a run will take: weights and the optimizer's state exactly, gradients as an upper bound.
TrainMemory expected_memory(const TrainSizes& sizes, const TrainOptions& options, int processes);

}  // namespace refold
