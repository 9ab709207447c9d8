// The "pre_tokenizer" of byte-level BPE: libllama knows a fixed set of them by name and takes no patterns.
#pragma once

#include <string>

#include "vocab/json_view.h"

namespace refold {

// Whether `json` (a "pre_tokenizer" or null) is byte level.
bool is_byte_level(const Json& json);

struct PreTokenizer {
    std::string name;               // tokenizer.ggml.pre
    bool add_prefix_space = false;  // a space goes before every text that starts with none
};
// libllama's name for exactly this splitting. Throws Error(unsupported), quoting it, when it has none.
PreTokenizer recognise_pre_tokenizer(const JsonView& json, bool ignore_merges);

// The reverse, for a vocabulary that came with a name only. Throws Error(unsupported) for a name that is not
// known.
struct NamedPreTokenizer {
    Json pre_tokenizer, normalizer;
    bool ignore_merges = false;
};
NamedPreTokenizer pre_tokenizer_named(const std::string& name);

}  // namespace refold
