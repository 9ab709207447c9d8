// The topology as a table for people: the source and form of every layer's weights.
#pragma once

#include <string>

#include "model/model.h"

namespace refold::cli {

// One row per layer; adjacent layers with equal rows, or references to adjacent layers, are joined:
//   15-29  attn.q,k,v,o, ffn.gate,up,down <-0-14 + LoRA 64
// "<-3": the weights of layer 3; "all" stands for every slot. "attn.q,o 0-2<-24.3-5, own 3-8": heads 0 to
// 2 of these slots are heads 3 to 5 of layer 24. Loops and prefixes are listed above the rows.
std::string topology_table(const Model& model);

// "low rank 57", "tucker 288x32x4 of 9 heads", "LoRA 64" (added to a stored weight), "low rank 57 + LoRA 64".
// Empty without factors.
std::string factors_text(const Model& model, const Expression& expression);

}  // namespace refold::cli
