// The "pre_tokenizer" of byte-level BPE. libllama has a fixed set of named ones and accepts no patterns; some
// of them only come close to the pattern of their models.
#pragma once

#include <string>

#include "vocab/json_view.h"

namespace refold {

// Whether `json` (a "pre_tokenizer" or null) is byte level.
bool is_byte_level(const Json& json);

// tokenizer.ggml.pre of a splitting that libllama lacks. llama.cpp refuses it rather than splitting
// otherwise.
inline constexpr const char* kOwnPreTokenizer = "refold";

struct PreTokenizer {
    std::string name = kOwnPreTokenizer;  // tokenizer.ggml.pre
    bool exact = false;                   // libllama splits exactly so; else Splitter has to
    bool add_prefix_space = false;        // put a space before every text that does not start with one
};
// libllama's name for this splitting, or for the one of its models.
PreTokenizer recognize_pre_tokenizer(const JsonView& json, bool ignore_merges);

// The reverse, for a vocabulary that comes with a name only. Throws Error(unsupported) for an unknown name.
struct NamedPreTokenizer {
    Json pre_tokenizer, normalizer;
    bool ignore_merges = false;
};
NamedPreTokenizer pre_tokenizer_named(const std::string& name);

}  // namespace refold
