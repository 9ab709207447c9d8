// Training a few positions so that the residual stream behind them becomes a given one. The work is done by
// the torch engine's library.
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

// A place where the tensors are used: these positions take `inputs` to `targets`. Sequences from `held_out`
// on are not trained with.
struct FitPlace {
    PositionRange range;
    Streams inputs, targets;
};

// A part of a tensor that stays as it is: rows, or columns, [first, first + count).
struct FrozenPart {
    bool columns = false;
    int64_t first = 0, count = 0;
};

struct RangeFitRequest {
    const Model& model;
    std::span<const FitPlace> places;
    size_t held_out = 0;
    std::map<std::string, std::vector<FrozenPart>> tensors;  // that are trained
    TrainOptions options;  // train, objective, context, save_every and weight_decay have no meaning here
    int threads = 0;
    // After every step: its number from 1 on, and the error so far on held-out sequences.
    std::function<void(int64_t step, double held_out)> report = {};
    std::function<bool()> stop = {};  // true: throw Error(interrupted)
};

// Errors are |out - target|^2 / |target|^2 of a token, averaged over tokens and places.
struct RangeFitResult {
    std::map<std::string, std::vector<float>>
        tensors;  // float32; empty when nothing was better than what was there
    double held_out_before = 0, held_out_after = 0;  // after <= before
    int64_t steps = 0;
    bool stopped_early = false;
};

// Adam on the error of the fit sequences; the result are the weights with the smallest error on the held-out
// ones. Tensors that several places use are trained with the sum of their gradients. In memory are the
// weights of the places' positions, and gradients and moments of the trained tensors, in float32. Throws
// Error(usage) for options out of range, Error(input) for activations that are not finite,
// Error(interrupted), Error(unsupported) in a build without libtorch.
RangeFitResult fit_ranges(const RangeFitRequest& request);

// What it is in the library.
inline constexpr const char* kRangeFitSymbol = "refold_torch_fit_ranges";
using RangeFitFunction = void(const RangeFitRequest& request, RangeFitResult& result);

}  // namespace refold
