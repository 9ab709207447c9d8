// Conversion of a model to a block of layers that runs several times, for `recursive` and `relax`.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", section 2.2.
#pragma once

#include <string>
#include <vector>

#include "compress/method/method.h"

namespace refold {

namespace recursive {

// The stored layer, of K, that layer i of L = K loops uses.
enum class Tying {
    cycle,      // i mod K: the whole block in each loop
    sequence,   // floor(i / loops): each layer several times in a row
    cycle_rev,  // as cycle, with every second loop backwards
};
// The weights of stored layer k.
enum class Init {
    stepwise,     // layer floor(k (L - 1) / (K - 1) + 1/2): evenly spaced, the first and the last included
    average,      // the mean of the layers that use it
    lower,        // layer k
    random,       // N(0, 0.02^2), norms one, biases zero
    fixed_start,  // layer k * loops: the first, then at one interval; the last is not included (Figure 11a)
};
// Norms and biases, the vectors of a layer.
enum class Norms {
    init,     // tied, initialized like the weights
    average,  // tied, the mean over the layers that use the stored layer
    choose,   // tied, those of the copied layer, or of the first of the averaged ones
    keep,     // each layer has its own
    fold,     // gains are folded into the following maps (norm_folding.h); each layer has its own of the rest
    zero,     // tied; gains and biases of norms are the checkpoint's zeros (Figure 11b, LN-zero)
};

struct Settings {
    int64_t loops = 2;
    Tying tying = Tying::cycle;
    Init init = Init::stepwise;
    Norms norms = Norms::init;
    uint64_t seed = 0;
    std::string type = "auto";
};
std::vector<OptionSpec> option_specs(const std::string& init);
Settings settings_of(const Options& options);

struct Plan {
    std::vector<size_t> stored;  // the stored layer of each layer
    // By stored layer: the layers whose mean it holds; none: random.
    std::vector<std::vector<size_t>> sources;

    // The layers that use stored layer `k`, ascending.
    std::vector<size_t> members(size_t k) const;
};
// Throws Error(usage) when the loops do not divide the layers.
Plan make_plan(size_t layers, const Settings& settings);

struct Conversion {
    // The given model with a separate tensor for each slot of each layer, norms folded when asked for: the
    // reference of the residuals of `relax`.
    Model original;
    Model tied;
    Plan plan;
};
// Weights that an earlier step shared or factored are written out first. Each layer keeps its own window,
// rotation, prefix and KV cache. Throws Error(unsupported) when layers that would share a stored layer differ
// in slots or sizes.
Conversion convert(const Model& model, const Settings& settings);

// Reports what the conversion did.
void report(const Conversion& conversion, const Settings& settings, StepReport& report);

}  // namespace recursive
}  // namespace refold
