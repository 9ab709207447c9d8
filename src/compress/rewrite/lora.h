// Adding a LoRA to linear maps: W x + B A x, whatever expression W is.
#pragma once

#include <array>

#include "compress/method/method.h"

namespace refold {

// Modules for which ranks are given (Relaxed Recursive Transformers, Table 6).
constexpr std::array kLoraModules = {"q", "kv", "out", "ffn"};
size_t lora_module(Slot slot);
// Rank of each module: the option `ranks` ("128,256,128,256", or one number for all) when given, else `rank`.
std::array<int64_t, kLoraModules.size()> lora_ranks(const Options& options);
std::vector<OptionSpec> lora_rank_options();

struct Lora {
    Tensor b;  // {rank, out}
    Tensor a;  // {in, rank}
};
// B = 0, so that the model computes what it did; A is Gaussian (deviation 0.02) by seed, layer and slot.
Lora zero_lora(DType type, SlotShape shape, int64_t rank, uint64_t seed, size_t layer, Slot slot);
// W becomes W + B A. The factors are stored under names of the layer. The slot must not have a LoRA yet.
void add_lora(Model& model, size_t layer, Slot slot, Lora lora);

}  // namespace refold
