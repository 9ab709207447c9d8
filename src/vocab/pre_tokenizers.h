// The "pre_tokenizer" of byte-level BPE. libllama has a fixed set of named ones and accepts no patterns.
#pragma once

#include <string>

#include "vocab/json_view.h"

namespace refold {

// Whether `json` (a "pre_tokenizer" or null) is byte level.
bool is_byte_level(const Json& json);

struct PreTokenizer {
    std::string name;               // tokenizer.ggml.pre
    bool add_prefix_space = false;  // put a space before every text that does not start with one
};
// libllama's name for exactly this splitting. Throws Error(unsupported) quoting `json` when it has none.
PreTokenizer recognize_pre_tokenizer(const JsonView& json, bool ignore_merges);

// The reverse, for a vocabulary that comes with a name only. Throws Error(unsupported) for an unknown name.
struct NamedPreTokenizer {
    Json pre_tokenizer, normalizer;
    bool ignore_merges = false;
};
NamedPreTokenizer pre_tokenizer_named(const std::string& name);

}  // namespace refold
