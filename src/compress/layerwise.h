// The objective `layerwise`: position by position, what is a position's own is trained so that the residual
// stream behind it is the original model's.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compress/method.h"
#include "train/options.h"
#include "train/range_fit.h"

namespace refold {

// Trains `selected` tensors on the step's calibration text, options.steps steps at every position that has
// some of them. Throws Error(usage) for options that have no meaning here, Error(unsupported) when the model
// has other positions than the original.
Model train_layerwise(const Model& model, Step& step, const TrainOptions& options,
                      const std::string& type = "same");

namespace layerwise {

// What is trained when a position's turn has come.
struct Turn {
    std::vector<size_t> positions;  // itself, and later ones that have whole tensors in common with it
    std::map<std::string, std::vector<FrozenPart>> tensors;
};
// Of every position in forward order. A position trains
// - tensors that no other position uses;
// - of tensors whose heads other positions use as well, the heads that are its own;
// - tensors that it has in common with later positions as a whole (the block of a loop, an FFN), together
// with all of
//   these, whose own tensors are then trained along.
// What belongs to the whole model (embeddings, output) stays.
std::vector<Turn> turns(const Model& model, const std::set<std::string>& selected);

}  // namespace layerwise
}  // namespace refold
