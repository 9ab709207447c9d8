// A topology for people: where every position takes its weights from, and in which form.
#pragma once

#include <string>

#include "model/model.h"

namespace refold::cli {

// One row per position; neighbours that say the same, or refer to neighbours, are one row:
//   15-29  attn.q,k,v,o, ffn.gate,up,down <-0-14 + LoRA 64
// "<-3": the weights of position 3; "all" stands for every slot. "attn.q,o 0-2<-24.3-5, own 3-8": heads 0 to
// 2 of these slots are heads 3 to 5 of position 24. Loops and prefixes are told above the rows.
std::string topology_table(const Model& model);

// "low rank 57", "tucker 288x32x4 of 9 heads", "LoRA 64" of what is added to stored weights, "low rank 57 +
// LoRA 64". Empty where no factors are.
std::string factors_text(const Model& model, const Expression& expression);

}  // namespace refold::cli
