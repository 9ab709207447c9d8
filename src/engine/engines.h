// The engines that make_engine() chooses from. `options` are complete and checked (checked_options.h).
#pragma once

#include <memory>

#include "engine/engine.h"

namespace refold {

std::unique_ptr<Engine> make_ggml_single_sequence_engine(const Model& model, const EngineOptions& options);
std::unique_ptr<Engine> make_ggml_batched_engine(const Model& model, const EngineOptions& options);
// Throws Error(unsupported) in a build without libtorch.
std::unique_ptr<Engine> make_torch_engine(const Model& model, const EngineOptions& options);

}  // namespace refold
