// The engine for the requests of a model's tasks.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace refold {

// With room for steps of many sequences where the model and the options allow several, else for one sequence
// at a time. options.context: tokens of the longest sequence. Throws as make_engine(), and Error(usage) for a
// KV cache that evicts rows.
std::unique_ptr<Engine> make_task_engine(const Model& model, EngineOptions options);

}  // namespace refold
