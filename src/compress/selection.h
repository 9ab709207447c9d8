// What the methods' common options mean: `layers`, `slots`, `ranks`, and the type of computed tensors.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

// "20-29,5", counted from 0, or "all": ascending, without repetition. Throws Error(usage) for anything else
// and for positions that the model does not have.
std::vector<size_t> parse_layers(const std::string& text, size_t positions);

// "attn.q,ffn.down", "attn" or "ffn" (all matrices of the module that the family has), or "all". Only matrix
// slots. Throws Error(usage) naming the slots that the family has.
std::vector<Slot> parse_slots(const std::string& text, const Family& family);

// "288,32,4": `count` positive whole numbers. Throws Error(usage).
std::vector<int64_t> parse_ranks(const std::string& text, size_t count);

// The option specifications that go with them.
OptionSpec layers_option(const std::string& fallback = "all");
OptionSpec slots_option(const std::string& fallback, const std::string& help);
OptionSpec type_option();

// Type of a tensor computed from `sources`: what `given` (the option `type`) says, or for "auto" F32 where
// one of them is F32, else BF16 where all are BF16, else F16. Quantised sources give F16: quantising is a
// step of its own, at the end.
DType computed_type(const std::string& given, const Model& model, const std::vector<std::string>& sources);

// "0-3, 7": for reports.
std::string layers_text(const std::vector<size_t>& layers);

// Groups of positions whose expressions in `slots` are equal: what is done to one is done to all, once. In
// order of their first position; only of `layers`. Throws Error(unsupported) when a position outside `layers`
// shares its weights with one inside: say which (a method would otherwise store them twice).
std::vector<std::vector<size_t>> tied_positions(const Model& model, const std::vector<size_t>& layers,
                                                const std::vector<Slot>& slots);

}  // namespace refold
