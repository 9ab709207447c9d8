// Importance of weights by gradients, for structured pruning. The torch engine's library does the work.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

// Estimates of how much the loss changes without the weights w (LLM-Pruner, Ma et al. 2023, equations 3 to
// 5). g is the gradient of the mean loss, h the mean over sequences of the squared gradient (the diagonal of
// the Fisher information).
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
    std::map<std::string, bool> tensors;  // stored tensors; true: importance per column instead of per row
    int threads = 0;
    std::string device = "auto";  // auto (a CUDA device if there is one), cpu or cuda
    // Called after every tensor (first order) or sequence (second order).
    std::function<void(int64_t done, int64_t total)> report = {};
    std::function<bool()> stop = {};  // true: throw Error(interrupted)
};

// The importance of every row (or column) of the tensors. The gradient of a tensor that several layers share
// is the sum over its uses. Memory: the model in float32, and
// - vector, element1: the residual stream of all sequences after every layer, and the gradients of one layer
//   at a time; the gradient of a shared tensor stays until the first layer that uses it.
// - element2, mix: the activations of one sequence, and three times the gradients of the tensors.
// Throws Error(input) for a loss that is not finite, Error(unsupported) in a build without libtorch.
using Importance = std::map<std::string, std::vector<float>>;
Importance taylor_importance(const ImportanceRequest& request);

// Its symbol in the library.
inline constexpr const char* kImportanceSymbol = "refold_torch_importance";
using ImportanceFunction = void(const ImportanceRequest& request, Importance& result);

}  // namespace refold
