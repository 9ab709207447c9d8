// Adam (Kingma & Ba 2015) with decoupled weight decay, which is AdamW (Loshchilov & Hutter 2019). A step
// scales weights by 1 - learning rate * decay. Decay that is added to the gradient instead is divided by the
// root of its own square where gradients are smaller than decay * weight, as those of large models are after
// clipping: every weight then shrinks by the learning rate in each step. Every process holds the state of its
// share of the leaves' elements (train/torch/shares.h).
//
// Where leaves are in BF16, which is too coarse to add up small steps, the state has their values in float32
// as well (master weights, Micikevicius et al. 2018). Steps change these; the leaves are their rounded
// values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/options.h"
#include "train/torch/processes.h"
#include "train/torch/shares.h"

namespace refold {

class Optimizer {
public:
    // Weight decay applies to matrices, not to vectors (norms, biases). Throws Error(internal) for leaves
    // that are not contiguous, or neither float32 nor BF16.
    Optimizer(Leaves leaves, const TrainOptions& options, Processes& processes);

    const Shares& shares() const { return shares_; }

    // The gradients of this process's share as float32, 0 at first: from now on steps take these and not the
    // leaves' own (ZeRO stage 2). They are the optimizer's own; GradientBuckets adds to them.
    at::Tensor shared_gradients();

    // One step with the gradients times `gradient_scale`; the gradients must be summed over all processes.
    // Afterwards every process has all new weights. A leaf without a gradient counts as having a zero
    // gradient. Results equal torch.optim's up to rounding.
    void step(double learning_rate, double gradient_scale = 1);
    // L2 norm of all gradients together, the same in every process. All processes must call it.
    double gradient_norm() const;
    void zero_gradients();

    // Whether there are master weights.
    bool has_masters() const { return master_.defined(); }
    // The weights of this process's share as float32: the master weights, or a copy of the leaves' elements.
    at::Tensor own_weights() const;
    // Sets master weights, if there are any, to values that are not rounded. `values` gives a leaf's as
    // float32 in the CPU's memory; it is asked for those of the share.
    void set_masters(const std::function<at::Tensor(const std::string& name)>& values);
    // Sets the weights of all processes' shares, and thereby the leaves. Collective.
    void set_own_weights(const at::Tensor& weights);

    // The state of this process's share: "m", "v", and with master weights "weights". The tensors are the
    // optimizer's own.
    Leaves state() const;
    int64_t steps() const { return steps_; }
    void set_steps(int64_t steps) { steps_ = steps; }
    // Of the state.
    uint64_t bytes() const;

private:
    std::vector<at::Tensor> own_gradients() const;
    // This process's weights of a slice, in float32, which a step changes.
    at::Tensor weights_of(const LeafSlice& slice) const;
    void share_weights();

    Shares shares_;
    TrainOptions options_;
    Processes& processes_;
    std::vector<LeafSlice> own_;  // `at`: of their state in m_, v_, master_ and gradients_
    at::Tensor m_, v_, master_;
    at::Tensor gradients_;
    int64_t steps_ = 0;
};

}  // namespace refold
