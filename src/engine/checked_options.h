// Which options go together, and what an engine with them can do.
#pragma once

#include "engine/engine.h"

namespace refold {

// The options with defaults filled in. Throws Error(usage) for values out of range, Error(unsupported) for
// options that do not go together or that the model does not allow, Error(internal) for a range of layers
// without the sources of their attention.
EngineOptions checked_options(EngineOptions options, const Model& model);

// Of an engine with checked options.
Capabilities capabilities_of(const Model& model, const EngineOptions& options);

}  // namespace refold
