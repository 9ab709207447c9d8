// Recursive Transformers: one block of layers, run several times.
// "Relaxed Recursive Transformers: Effective Parameter Sharing with Layer-wise LoRA", section 2.2.
#pragma once

#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

extern const Method kRecursive;

// The conversion in parts, for relax and for tests.
namespace recursive {

// Which of K stored layers position i of L = K loops uses.
enum class Tying {
    cycle,      // i mod K: the block again and again
    sequence,   // floor(i / loops): each layer several times in a row
    cycle_rev,  // the block forwards and backwards in turn
};
// What a stored layer holds.
enum class Init {
    stepwise,  // layer floor(k (L - 1) / (K - 1) + 1/2): evenly spaced, the first and the last among them
    average,   // the mean of the layers that it stands for
    lower,     // layer k
    random,    // N(0, 0.02^2), norms one, biases zero
};
// Norms and biases, the vectors of a layer.
enum class Norms {
    init,     // tied, made as the stored layer's weights are
    average,  // tied: the mean over the positions that the stored layer stands for
    choose,   // tied: those of the layer that was copied; of the first of those averaged
    keep,     // every position its own
    fold,  // gains folded into the following maps first (fold_norms.h); what remains: every position its own
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
    std::vector<size_t> stored;                // of every position
    std::vector<std::vector<size_t>> sources;  // of every stored layer: the mean of these; none: random

    // The positions that stored layer `k` serves, ascending.
    std::vector<size_t> members(size_t k) const;
};
// Throws Error(usage) when the loops do not divide the layers.
Plan make_plan(size_t layers, const Settings& settings);

struct Conversion {
    // The source with a tensor of its own for every slot of every position, norms folded where asked: what
    // the tied weights are compared with.
    Model original;
    Model tied;
    Plan plan;
};
// Weights that an earlier step shared or factored are written out first. Positions stay positions: their
// windows, rotations and prefixes are their own, and so are their keys and values. Throws Error(unsupported)
// when positions that would share a layer differ in slots or sizes.
Conversion convert(const Model& model, const Settings& settings);

// What the conversion did, into the report.
void report(const Conversion& conversion, const Settings& settings, StepReport& report);

}  // namespace recursive
}  // namespace refold
