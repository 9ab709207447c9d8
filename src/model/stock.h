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

}  // namespace refold
