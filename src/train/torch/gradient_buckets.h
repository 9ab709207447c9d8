// Gradients summed over all processes while the backward pass computes the remaining ones, in buckets of
// leaves (Li et al. 2020, PyTorch Distributed).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "train/memory.h"
#include "train/torch/processes.h"
#include "train/torch/shares.h"

namespace refold {

class GradientBuckets {
public:
    // `leaves` in the order in which a backward pass is expected to give their gradients. In another order
    // sums are the same, but later. A leaf may get its gradient in several contributions, and none in some
    // passes.
    GradientBuckets(std::vector<at::Tensor> leaves, Processes& processes,
                    int64_t bucket_bytes = kGradientBucketBytes);
    ~GradientBuckets();

    // From now on sums go only to the process that has the element in its share, which adds them to `own`
    // [Shares::own_count()], float32 (ZeRO stage 2): a leaf's gradient is freed when its bucket is sent, and
    // no process holds more of the others' shares than a few buckets. Then all passes must be between begin()
    // and finish(), in every process as many.
    void share(const Shares& shares, at::Tensor own);

    // Call before the last backward pass of a step; earlier passes only accumulate gradients.
    void begin();
    // Call after that pass. Every leaf's gradient is then the sum over all processes; with several processes
    // every leaf has a gradient. After share() none has one.
    void finish();

    // The most that gradients, and buckets of them, have taken at a time.
    uint64_t peak_bytes() const;

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace refold
