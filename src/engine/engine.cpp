#include "engine/engine.h"

#include <algorithm>

#include "engine/checked_options.h"
#include "engine/engines.h"

namespace refold {

std::unique_ptr<Engine> make_engine(const Model& model, const EngineOptions& options) {
    const EngineOptions complete = checked_options(options, model);
    if (complete.kind == EngineKind::torch) return make_torch_engine(model, complete);
    return complete.sequences == 1 && !complete.by_loop ? make_ggml_single_sequence_engine(model, complete)
                                                        : make_ggml_batched_engine(model, complete);
}

size_t logits_of_step(int64_t n_vocab) {
    return std::max<size_t>(16, (64 << 20) / (static_cast<size_t>(n_vocab) * sizeof(float)));
}

}  // namespace refold
