// The recipes of a paper's model for another one.
#pragma once

#include "compress/recipe.h"

namespace refold {

// A recipe for a model of `from` layers, for one of `to` layers: layers that it names are counted from the
// last one, since the papers choose theirs near the end. Throws Error(usage) when the other model has no such
// layer.
Recipe for_depth(const Recipe& recipe, size_t from, size_t to);

}  // namespace refold
