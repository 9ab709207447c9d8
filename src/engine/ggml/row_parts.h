// Products of a matrix whose rows lie in several storages (model/row_parts.h).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ggml/handles.h"

namespace refold {

// y [rows, tokens] from the products of the parts [rows of a part, tokens], F32: row_ids has the rows of y in
// the order of the parts, and must outlive the graph.
ggml_tensor* rows_of_parts(ggml_context* context, std::vector<ggml_tensor*> products,
                           const std::vector<int32_t>& row_ids);

}  // namespace refold
