#include "tasks/task_engine.h"

#include <algorithm>

#include "core/error.h"

namespace refold {
namespace {

// Eight of the longest sequences, within bounds: enough for steps of hundreds of tokens.
int64_t kv_tokens_for(int64_t context) {
    constexpr int64_t kLeast = 2048, kMost = 16384;
    return std::max(std::clamp(8 * context, kLeast, kMost), 2 * context);
}

}  // namespace

std::unique_ptr<Engine> make_task_engine(const Model& model, EngineOptions options) {
    if (options.eviction.active()) {
        fail(ErrorCode::usage, "tasks",
             "a KV cache that evicts rows cannot go back to what prompts have in common - leave out "
             "--kv-policy");
    }
    if (obstacle_to_several_sequences(model, options).empty()) {
        options.sequences = 0;
        options.kv_tokens = kv_tokens_for(options.context);
    }
    return make_engine(model, options);
}

}  // namespace refold
