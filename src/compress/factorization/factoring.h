// Common to the methods that replace weights by factors: the matrices that they may replace, and long
// decompositions that run in parallel within bounded memory.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "compress/method/method.h"
#include "compress/method/work.h"

namespace refold::factoring {

using Tensors = std::map<std::string, Tensor>;
using Layers = std::vector<size_t>;

// tied_layers() of those of `layers` that have one of `slots`. Throws Error(unsupported) with layer and slot
// for weights that cannot be replaced as a whole: heads shared between layers, factors or a LoRA of an
// earlier step, a tensor that other layers also use.
std::vector<Layers> groups_of(const Model& model, const std::vector<size_t>& layers,
                              const std::vector<Slot>& slots);

// Those of `slots` that the layer has.
std::vector<Slot> slots_at(const Model& model, size_t layer, const std::vector<Slot>& slots);

// The stored tensors of the slots of a layer.
std::vector<std::string> sources_of(const Model& model, size_t layer, const std::vector<Slot>& slots);

// The rank that is `part` of the largest possible one: int(full * part), as in LASER's program.
int64_t rank_of(double part, int64_t full);

// A slot's matrix as floats, row major [out][in]; mapped pages are released. Throws Error(input) with layer
// and slot when an element is not finite.
std::vector<float> weights_of(const Model& model, size_t layer, Slot slot);

// "layer 3", "layers 3, 18"
std::string place_text(const Layers& layers);
// "attn.q, attn.o"
std::string slots_text(const std::vector<Slot>& slots);

// A decomposition. It depends on its key and its input alone: see Work::results().
struct Job {
    std::string place;  // for messages
    ResultKey key;
    int64_t memory = 0;                                  // bytes that it needs, the input included
    std::map<std::string, std::vector<int64_t>> shapes;  // of the results that the model stores
    std::function<std::vector<float>()> input;
    std::function<Arrays(const std::vector<float>&)> compute;
};

// Results of all jobs as float32 tensors. Runs as many jobs at once as fit into 3 GiB, with one BLAS thread
// each; else one after the other with all threads. In a dry run (`work` null): only tensors of these shapes,
// without values.
std::vector<Tensors> run(const std::vector<Job>& jobs, Work* work, const std::string& label);

// Sums of squares: of the error of an approximation, and of the matrix.
struct Squares {
    double left = 0, all = 0;
    double relative() const;
    void operator+=(const Squares& other);
};
// Of the best approximation of a matrix [out][in] with this rank (0: by zero).
Squares squares_of_svd(std::span<const float> matrix, int64_t out, int64_t in, int64_t rank);

// An entry of the list "svd" in the details: {"layers", "slot", "relative_error"}.
nlohmann::json svd_details(const Layers& layers, Slot slot, double relative_error);

// Options of iterative decompositions: `tol`, `sweeps`, and `compare` (also compute the error of truncated
// SVDs with as many numbers).
OptionSpec tolerance_option();
OptionSpec sweeps_option();
OptionSpec compare_option();

// "998,416 numbers, 884,736 before, compression 0.89x"
std::string sizes_text(int64_t before, int64_t after);

}  // namespace refold::factoring
