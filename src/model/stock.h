// Models for stock llama.cpp.
#pragma once

#include <string>

#include "model/model.h"

namespace refold {

// The model as stock llama.cpp loads it, with the same logits.
struct StockModel {
    Model model;
    std::string note;  // for the user, about the difference; mostly empty
};
// Throws Error(unsupported) naming the part that llama.cpp cannot express.
StockModel for_stock(const Model& model);

// The model's own file is what for_stock() would write, so that its matrices can change their types and
// llama.cpp still loads it. Throws as for_stock().
bool is_stock(const Model& model);

}  // namespace refold
