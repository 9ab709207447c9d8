// Weights whose factors are multiplied out once, when loading.
#pragma once

#include <optional>

#include "engine/engine.h"
#include "model/model.h"

namespace refold {

// The model with dense tensors, computed when read, in place of the factors that EngineOptions::factored
// wants multiplied out (automatic: where choose_execution() says so); slots of equal expressions share one.
// Nothing when there are none.
std::optional<Model> with_reconstructed(const Model& model, const EngineOptions& options);

}  // namespace refold
