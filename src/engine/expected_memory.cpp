#include "engine/expected_memory.h"

#include "engine/checked_options.h"
#include "model/accounting.h"

namespace refold {

EngineMemory expected_memory(const Model& model, const EngineOptions& given) {
    const EngineOptions options = checked_options(given, model);
    const Capabilities capabilities = capabilities_of(model, options);
    const Cost cost = account(model, 1).model;
    const bool f32 = options.f32 || options.kind == EngineKind::torch;
    EngineMemory out;
    out.weight_bytes = f32 ? 4 * cost.parameters : cost.bytes;
    if (!capabilities.causal) return out;
    const int64_t rows =
        model.config.n_prefix +
        (options.eviction.active() ? options.eviction.rows(options.context) : capabilities.kv_tokens);
    const auto elements = static_cast<int64_t>(cost.kv_bytes_per_token);  // of one byte each
    out.kv_bytes =
        static_cast<uint64_t>(rows) * row_bytes(f32 ? DType::F32 : element_type(options.kv), elements);
    return out;
}

}  // namespace refold
