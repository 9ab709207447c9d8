// Factored weights that are multiplied out once, when loading.
#pragma once

#include <optional>

#include "engine/engine.h"
#include "model/model.h"

namespace refold {

// The model with dense tensors in place of the factors that EngineOptions::factored wants multiplied out
// (automatic: those for which ExecutionChooser chooses it). A dense tensor is computed when it is read;
// slots with equal expressions share one. Nothing when no factors are multiplied out.
std::optional<Model> with_reconstructed(const Model& model, const EngineOptions& options);

}  // namespace refold
