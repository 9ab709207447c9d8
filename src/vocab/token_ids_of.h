// The token ids that metadata hold, all but the lists by token.
#pragma once

#include <cstdint>
#include <functional>

#include "io/gguf.h"

namespace refold {

// Replaces every token id in `metadata` by what `map` gives for it: keys that end in "token_id" or
// "_token_ids" and lists of ids, refold.tokenizer.json (added tokens, post-processor), generation_config.json
// and the config.json of a checkpoint, whose vocab_size becomes `size`. Ids outside the vocabulary of
// `old_size` tokens stay (-1: none). Throws Error(unsupported) naming the key for a list of 32-bit integers
// under "tokenizer." of another meaning.
void replace_token_ids(GgufMetadata& metadata, int64_t old_size, int64_t size,
                       const std::function<int32_t(int32_t)>& map);

}  // namespace refold
