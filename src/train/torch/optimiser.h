// Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019) over float32 leaves; with several processes each
// keeps the state of its part of the numbers only (ZeRO stage 1, Rajbhandari et al. 2020).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "train/options.h"
#include "train/torch/processes.h"

namespace refold {

class Optimiser {
public:
    // Weight decay is applied to matrices, not to vectors (norms, biases).
    Optimiser(std::map<std::string, at::Tensor> leaves, const TrainOptions& options, Processes& processes);

    // One step with the leaves' gradients, which are the sums over all processes, each times `gradient_scale`; every
    // process has all new weights afterwards. Results are torch.optim's to rounding.
    void step(double learning_rate, double gradient_scale = 1);
    // L2 norm of all gradients together.
    double gradient_norm() const;
    void zero_gradients();

    // This process's part, bit for bit: "m", "v" and the number of steps.
    std::map<std::string, at::Tensor> state() const;
    // Throws Error(input) when it belongs to other leaves or another number of processes.
    void restore(const std::map<std::string, at::Tensor>& state);

private:
    std::map<std::string, at::Tensor> leaves_;
    TrainOptions options_;
    Processes& processes_;
    std::vector<at::Tensor> m_, v_;
    int64_t steps_ = 0;
};

}  // namespace refold
