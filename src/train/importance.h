// Importance of weights by gradients, for structured pruning. The work is done by the torch engine's library.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// How much the loss would change without weights w (LLM-Pruner, Ma et al. 2023, equations 3 to 5): g is the
// gradient of the mean loss, h the mean over sequences of their squared gradients, the diagonal of Fisher's
// information.
enum class Taylor {
    vector,    // |sum of w g|
    element1,  // sum of |w g|
    element2,  // sum of |w h w|
    mix,       // sum of |w g - w h w / 2|
};

struct ImportanceRequest {
    const Model& model;
    std::span<const std::vector<int32_t>>
        sequences;  // of one length; the loss predicts each token but the first
    Taylor taylor = Taylor::element1;
    std::map<std::string, bool> tensors;  // stored tensors, and whether sums are over columns instead of rows
    int threads = 0;
    std::string device = "auto";  // auto (a CUDA device where there is one), cpu or cuda
    // After every tensor (first order) or sequence (second order).
    std::function<void(int64_t done, int64_t total)> report = {};
    std::function<bool()> stop = {};  // true: throw Error(interrupted)
};

// Of every row (column) of these tensors; a tensor that several places use has the sum of their gradients. In
// memory is the model in float32; for vector and element1 the residual stream of all sequences behind every
// position and the gradients of one position at a time (of tensors that several positions use, until the
// first of them has been reached), for element2 and mix the activations of one sequence and the gradients of
// these tensors three times. Throws Error(input) for a loss that is no number, Error(unsupported) in a build
// without libtorch.
using Importance = std::map<std::string, std::vector<float>>;
Importance taylor_importance(const ImportanceRequest& request);

// What it is in the library.
inline constexpr const char* kImportanceSymbol = "refold_torch_importance";
using ImportanceFunction = void(const ImportanceRequest& request, Importance& result);

}  // namespace refold
