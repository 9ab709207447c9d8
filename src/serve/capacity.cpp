#include "serve/capacity.h"

#include "core/error.h"

namespace refold {

std::string check_capacity(const Capacity& c) {
    if (c.kv_tokens > c.slots * c.context) {
        fail(ErrorCode::usage, "serve",
             "--kv-tokens: got {}, but {} slots of {} tokens use at most {} - give less, or more --slots",
             c.kv_tokens, c.slots, c.context, c.slots * c.context);
    }
    if (c.context <= c.trained) return "";
    return fmt::format(
        "note: the model was trained for {} tokens, --context asks for {}: beyond that its answers are "
        "mostly "
        "noise, and the KV cache grows",
        c.trained, c.context);
}

}  // namespace refold
