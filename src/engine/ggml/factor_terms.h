// Factored weights in a FactoredPlan: the storages of their factors, and the terms that multiply them.
#pragma once

#include <span>

#include "engine/ggml/factored_plan.h"
#include "engine/ggml/tensor_placement.h"

namespace refold {

// Places the factors of slots with one input: factors V that read this input become one storage where their
// types agree, every other factor has its own.
void place_factors(TensorPlacement& placement, std::span<const Expression> expressions);

// Adds the terms of a slot's factors, which must have been placed, to the plan; the slot's own rows are the
// last segment of `plan.last`. Adds none for a stored weight, alone or as the base of a LoRA.
void add_factor_terms(FactoredPlan& plan, const TensorPlacement& placement, const Expression& expression,
                      SlotShape shape);

}  // namespace refold
