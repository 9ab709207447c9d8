// A looped model as stock llama.cpp runs it without expanding: architecture "nanbeige", a Llama that runs its
// stored layers in loops, each with keys and values of its own.
#pragma once

#include <optional>
#include <string>

#include "model/model.h"
#include "model/stock.h"

namespace refold {

struct LoopedStock {
    // The stored block with metadata of "nanbeige": to be saved, not to be run here. Nothing where
    // llama.cpp's architecture cannot express the model; then for_stock() expands it.
    std::optional<StockModel> stock;
    int64_t loops = 1;
    std::string reason;  // why not; empty for a model that is not looped
};
// Looped are models whose layers repeat a block of layers, slot by slot: `recursive` with tying=cycle
// and tied norms. LoRA of single layers, norms of their own, other orders of layers and families with
// other blocks than Llama's are not expressible. Weights inside the block that are shared or made of factors
// are written out. Throws Error(unsupported) for what stock llama.cpp cannot express at all.
LoopedStock looped_stock(const Model& model);

}  // namespace refold
