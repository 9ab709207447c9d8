// What the methods that replace weights by factors have in common: which matrices they may take, and long
// decompositions that run side by side within bounded memory.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "compress/method.h"
#include "compress/work.h"

namespace refold::factoring {

using Tensors = std::map<std::string, Tensor>;
using Positions = std::vector<size_t>;

// tied_positions() of those of `layers` that have one of `slots`. Throws Error(unsupported), naming layer and
// slot, for weights that cannot be replaced as a whole: heads shared between layers, factors or a LoRA of an
// earlier step, a tensor that other positions use as well.
std::vector<Positions> groups_of(const Model& model, const std::vector<size_t>& layers,
                                 const std::vector<Slot>& slots);

// Those of `slots` that the position has.
std::vector<Slot> slots_at(const Model& model, size_t position, const std::vector<Slot>& slots);

// The stored tensors of the slots of a position.
std::vector<std::string> sources_of(const Model& model, size_t position, const std::vector<Slot>& slots);

// A slot's matrix as floats, row major [out][in]; mapped pages are given back. Throws Error(input) naming
// layer and slot when an element is not finite.
std::vector<float> weights_of(const Model& model, size_t position, Slot slot);

// "layer 3", "layers 3, 18"
std::string place_text(const Positions& positions);
// "attn.q, attn.o"
std::string slots_text(const std::vector<Slot>& slots);
// A tensor's name without ".weight": what names of its factors start with.
std::string stem(std::string tensor);

// A decomposition. It depends on `what` (method, version and settings) and its input alone: see
// Work::results().
struct Job {
    std::string place;  // for messages
    std::string what;
    int64_t memory = 0;                                  // bytes it needs while it runs, the input included
    std::map<std::string, std::vector<int64_t>> shapes;  // of the results that the model stores
    std::function<std::vector<float>()> input;
    std::function<Arrays(const std::vector<float>&)> compute;
};

// Results of all jobs, as float32 tensors: several jobs at once as far as 3 GiB suffice, one BLAS thread
// each; else one after the other with all threads. In a dry run (`work` null) tensors of these shapes without
// values, and nothing else.
std::vector<Tensors> run(const std::vector<Job>& jobs, Work* work, const std::string& label);

// A result of a few numbers.
std::vector<double> numbers(const Tensor& tensor);

// Sums of squares: of what an approximation leaves, and of everything.
struct Squares {
    double left = 0, all = 0;
    double relative() const;
    void operator+=(const Squares& other);
};
// Of the best approximation of a matrix [out][in] of this rank (0: nothing).
Squares squares_of_svd(std::span<const float> matrix, int64_t out, int64_t in, int64_t rank);

// What details say of it, one matrix at a time, in the list "svd": {"layers", "slot", "relative_error"}.
nlohmann::json svd_details(const Positions& positions, Slot slot, double relative_error);

// Options of iterative decompositions: `tol`, `sweeps`; and `compare`, whether the error of truncated SVDs of
// as many numbers is found as well.
OptionSpec tolerance_option();
OptionSpec sweeps_option();
OptionSpec compare_option();

// "998,416 numbers, 884,736 before, compression 0.89x"
std::string sizes_text(int64_t before, int64_t after);

}  // namespace refold::factoring
