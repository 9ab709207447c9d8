// Baselines that are compared at equal size: how near they come to it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "compress/method/method.h"

namespace refold {

// The parameters of floor(ratio x all) KV groups of the model: what head sharing (direct_share) at this ratio
// no longer stores. Without grouped-query attention a KV group is a head.
uint64_t parameters_of_heads(const Model& model, double ratio);

// Says in the report, and under "equal_size" in `details`, how many parameters more (or fewer, negative)
// `after` stores than `before` with that part of its heads shared.
void report_equal_size(const Model& before, const Model& after, double ratio, StepReport& report,
                       nlohmann::json& details);

}  // namespace refold
