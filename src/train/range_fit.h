// Trains a few layers so that the residual stream after them matches given targets. The torch engine's
// library does the work.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "train/options.h"

namespace refold {

// The residual stream of every sequence, [tokens, n_embd] each.
using Streams = std::vector<std::span<const float>>;

// A range of layers that uses the trained tensors and shall map `inputs` to `targets`. Sequences from
// RangeFitRequest::held_out on are not trained on.
struct FitPlace {
    LayerRange range;
    Streams inputs, targets;
};

// Rows (or columns) [first, first + count) of a tensor that must not change.
struct FrozenPart {
    bool columns = false;
    int64_t first = 0, count = 0;
};

struct RangeFitRequest {
    const Model& model;
    std::span<const FitPlace> places;
    size_t held_out = 0;
    std::map<std::string, std::vector<FrozenPart>> tensors;  // to train
    TrainOptions options;  // ignores train, objective, context, save_every and weight_decay
    int threads = 0;
    // Called after every step with its number, from 1, and the latest error on held-out sequences.
    std::function<void(int64_t step, double held_out)> report = {};
    std::function<bool()> stop = {};  // true: throw Error(interrupted)
};

// Errors are |out - target|^2 / |target|^2 per token, averaged over tokens and places.
struct RangeFitResult {
    std::map<std::string, std::vector<float>>
        tensors;                                     // float32; empty when training did not lower the error
    double held_out_before = 0, held_out_after = 0;  // after <= before
    int64_t steps = 0;
    bool stopped_early = false;
};

// Runs Adam on the error of the fit sequences and returns the weights with the smallest error on the held-out
// ones. A tensor that several places use gets the sum of their gradients. Memory: the weights of the places'
// layers, and gradients and optimizer state of the trained tensors, in float32. Throws Error(usage) for
// options out of range, Error(input) for activations that are not finite, Error(interrupted),
// Error(unsupported) in a build without libtorch.
RangeFitResult fit_ranges(const RangeFitRequest& request);

// Its symbol in the library.
inline constexpr const char* kRangeFitSymbol = "refold_torch_fit_ranges";
using RangeFitFunction = void(const RangeFitRequest& request, RangeFitResult& result);

}  // namespace refold
