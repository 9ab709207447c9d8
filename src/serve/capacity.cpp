#include "serve/capacity.h"

#include <algorithm>

#include "core/error.h"
#include "engine/engine.h"

namespace refold {

std::string check_capacity(const Capacity& c) {
    const int64_t most = std::max(c.slots, kDefaultContexts) * c.context;
    if (c.kv_tokens > most) {
        fail(
            ErrorCode::usage, "serve",
            "--kv-tokens: got {}, expected at most {} for {} slots of {} tokens - give less, or more --slots",
            c.kv_tokens, most, c.slots, c.context);
    }
    if (c.context <= c.trained) return "";
    return fmt::format(
        "note: the model was trained for {} tokens, --context asks for {}: beyond that its answers are "
        "mostly "
        "noise, and the KV cache grows",
        c.trained, c.context);
}

}  // namespace refold
