// What an engine will take of memory, before it is made.
#pragma once

#include "engine/engine.h"

namespace refold {

// Bytes of weights and KV cache, from the model's shapes; nothing for computing. Throws as make_engine() does
// for options out of range or that do not go together.
EngineMemory expected_memory(const Model& model, const EngineOptions& options);

}  // namespace refold
