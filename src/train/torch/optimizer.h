// Adam (Kingma & Ba 2015) with decoupled weight decay, which is AdamW (Loshchilov & Hutter 2019), over
// float32 leaves. A step scales weights by 1 - learning rate * decay. Decay that is added to the gradient
// instead is divided by the root of its own square where gradients are smaller than decay * weight, as those
// of large models are after clipping: every weight then shrinks by the learning rate in each step. The
// optimizer state is sharded over the processes (ZeRO stage 1, Rajbhandari et al. 2020): the elements of all
// leaves, concatenated by name, are divided into equal shares, one per process.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/options.h"
#include "train/torch/processes.h"

namespace refold {

class Optimizer {
public:
    // Weight decay applies to matrices, not to vectors (norms, biases). Throws Error(internal) for leaves
    // that are not contiguous float32.
    Optimizer(std::map<std::string, at::Tensor> leaves, const TrainOptions& options, Processes& processes);

    // One step with the leaves' gradients times `gradient_scale`; the gradients must be summed over all
    // processes. Afterwards every process has all new weights. A leaf without a gradient counts as having a
    // zero gradient. Results equal torch.optim's up to rounding.
    void step(double learning_rate, double gradient_scale = 1);
    // L2 norm of all gradients together, the same in every process. All processes must call it.
    double gradient_norm() const;
    void zero_gradients();

    // The state of this process's share: "m", "v", the number of steps, and an identity of leaves and
    // processes. The tensors are the optimizer's own.
    std::map<std::string, at::Tensor> state() const;
    // Restores bit for bit. Throws Error(input) for the state of other leaves or another number of processes.
    void restore(const std::map<std::string, at::Tensor>& state);

private:
    // Elements [first, first + count) of a leaf; their state begins at `state` in m_ and v_.
    struct LeafSlice {
        at::Tensor leaf;
        int64_t first, count, state;
    };
    std::vector<LeafSlice> slices(int64_t first, int64_t count) const;
    std::vector<at::Tensor> own_gradients() const;
    void share_weights();
    at::Tensor belongs_to() const;

    std::map<std::string, at::Tensor> leaves_;
    TrainOptions options_;
    Processes& processes_;
    int64_t numbers_ = 0, share_ = 0;  // elements of all leaves, and of one process (rounded up)
    std::vector<LeafSlice> own_;
    at::Tensor m_, v_;
    int64_t steps_ = 0;
};

}  // namespace refold
