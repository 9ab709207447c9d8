// The objective `layerwise`: layer by layer, a layer's own tensors are trained so that the residual stream
// after the layer is the original model's.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compress/method/method.h"
#include "train/options.h"
#include "train/range_fit.h"

namespace refold {

// Trains the tensors that options.train selects on the step's calibration text, options.steps steps for each
// layer that has some of them. Throws Error(usage) for options without meaning here, Error(unsupported) when
// the model has another number of layers than the original.
Model train_layerwise(const Model& model, Step& step, const TrainOptions& options,
                      const std::string& type = "same");

namespace layerwise {

// The tensors that are trained at a layer.
struct LayerTask {
    std::vector<size_t> layers;  // the layer, and later ones that have whole tensors in common with it
    std::map<std::string, std::vector<FrozenPart>> tensors;
};
// The tasks of all layers in forward order. A layer trains
// - tensors that no other layer uses;
// - its own heads of tensors whose other heads other layers use;
// - whole tensors that it has in common with later layers (the block of a loop, an FFN), together with the
// own tensors
//   of all these layers.
// Tensors of the whole model (embeddings, output) are not trained.
std::vector<LayerTask> layer_tasks(const Model& model, const std::set<std::string>& selected);

}  // namespace layerwise
}  // namespace refold
