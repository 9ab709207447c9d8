// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019) over float32 leaves. With several processes
// each keeps the state of its part of the numbers only (ZeRO stage 1, Rajbhandari et al. 2020): all leaves,
// one after another by name, are cut into as many equal runs of numbers as there are processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/options.h"
#include "train/torch/processes.h"

namespace refold {

class Optimiser {
public:
    // Weight decay is applied to matrices, not to vectors (norms, biases). Throws Error(internal) for leaves
    // that are not float32 and contiguous.
    Optimiser(std::map<std::string, at::Tensor> leaves, const TrainOptions& options, Processes& processes);

    // One step with the leaves' gradients, which are the sums over all processes, each times
    // `gradient_scale`; every process has all new weights afterwards. A leaf without a gradient counts as one
    // whose gradient is zero. Results are torch.optim's to rounding.
    void step(double learning_rate, double gradient_scale = 1);
    // L2 norm of all gradients together, the same number in every process. All processes must call it.
    double gradient_norm() const;
    void zero_gradients();

    // This process's part, bit for bit: "m", "v", the number of steps, and what it belongs to. The tensors
    // are the optimiser's own.
    std::map<std::string, at::Tensor> state() const;
    // Throws Error(input) when it belongs to other leaves or another number of processes.
    void restore(const std::map<std::string, at::Tensor>& state);

private:
    // Numbers of one leaf, and where their state begins in m_ and v_.
    struct Part {
        at::Tensor leaf;
        int64_t first, count, state;
    };
    std::vector<Part> parts(int64_t first, int64_t count) const;
    std::vector<at::Tensor> own_gradients() const;
    void share_weights();
    at::Tensor belongs_to() const;

    std::map<std::string, at::Tensor> leaves_;
    TrainOptions options_;
    Processes& processes_;
    int64_t numbers_ = 0, share_ = 0;  // of all leaves; of a process, rounded up
    std::vector<Part> own_;
    at::Tensor m_, v_;
    int64_t steps_ = 0;
};

}  // namespace refold
