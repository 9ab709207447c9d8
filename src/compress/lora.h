// Giving maps a LoRA of their own: W x + B A x beside whatever their weight is.
#pragma once

#include <array>

#include "compress/method.h"

namespace refold {

// The papers' modules (Relaxed Recursive Transformers, Table 6), by which ranks are given.
constexpr std::array kLoraModules = {"q", "kv", "out", "ffn"};
size_t lora_module(Slot slot);
// Rank of each module: option `ranks` ("128,256,128,256", or one number for all) where it is given, else
// `rank`.
std::array<int64_t, kLoraModules.size()> lora_ranks(const Options& options);
std::vector<OptionSpec> lora_rank_options();

struct Lora {
    Tensor b;  // {rank, out}
    Tensor a;  // {in, rank}
};
// B = 0 and A Gaussian (deviation 0.02) by seed, position and slot: changes nothing.
Lora zero_lora(DType type, SlotShape shape, int64_t rank, uint64_t seed, size_t position, Slot slot);
// W becomes W + B A; stored under the position's own names. The slot must not have a LoRA yet.
void add_lora(Model& model, size_t position, Slot slot, Lora lora);

}  // namespace refold
