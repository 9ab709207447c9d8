// Options that several methods have (`layers`, `slots`, `ranks`, `type`, `seed`), and texts of their reports.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compress/method/method.h"

namespace refold {

// "20-29,5" (from 0) or "all". The result is ascending, without repetition. Throws Error(usage) for anything
// else and for layers that the model does not have.
std::vector<size_t> parse_layers(const std::string& text, size_t n_layer);

// First layer of the top half, which has half of the layers, rounded down.
size_t top_half(size_t n_layer);

// As parse_layers(), or "top half".
std::vector<size_t> parse_layers_or_half(const std::string& text, size_t n_layer);

// "attn.q,ffn.down", "attn" or "ffn" (all matrices that the family's module has), or "all"; experts only
// where they are named. Matrix slots only. Throws Error(usage) with the slots that the family has.
std::vector<Slot> parse_slots(const std::string& text, const Family& family);

// floor(ratio * units), where 0.3 * 90 = 26.999... counts as 27.
size_t part_of(double ratio, size_t units);

// `count` positive whole numbers, such as "288,32,4". Throws Error(usage).
std::vector<int64_t> parse_ranks(const std::string& text, size_t count);

// The options that these functions parse.
OptionSpec layers_option(const std::string& fallback = "all");
OptionSpec slots_option(const std::string& fallback, const std::string& help);
OptionSpec type_option();
// `seed` of random numbers; `help` says which.
OptionSpec seed_option(const std::string& help);
uint64_t seed_of(const Options& options);

// Type of a tensor that is computed from `sources`. `given` is the option `type`; "auto" means F32 when one
// of the sources is F32, BF16 when all are BF16, else F16. Quantized sources give F16: quantizing is a
// separate step at the end.
DType computed_type(const std::string& given, const Model& model, const std::vector<std::string>& sources);

// A tensor's name without ".weight", with which the names of its factors start.
std::string stem(std::string tensor);

// "0-3, 7", for reports.
std::string layers_text(const std::vector<size_t>& layers);

// "4,423,680 parameters and 18.75 % of the KV cache", the savings of `after` over `before`.
std::string saving_text(const Model& before, const Model& after);

// Groups of layers, among `layers`, whose expressions in `slots` are equal, in the order of their first
// layers. A method changes each group once. Throws Error(unsupported) with both layers when one outside
// `layers` has the weights of one inside, since these would otherwise be stored twice.
std::vector<std::vector<size_t>> tied_layers(const Model& model, const std::vector<size_t>& layers,
                                             const std::vector<Slot>& slots);

}  // namespace refold
