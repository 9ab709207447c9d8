// What sequences have ended with, in a file: prompts that a server knows when it starts again.
#pragma once

#include <string>

#include "generation/shared_sequences.h"

namespace refold {

struct PrefixFile {
    std::string path = {};  // empty: none
    // Of the model and of all that its keys and values depend on. A file of another key is not read.
    std::string key = {};
};

// Writes what SharedSequences::kept() gives; for the process's user alone, as these are clients' texts. Where
// nothing is kept, there is no file. Returns their tokens. Throws Error(io), Error(unsupported) as
// Engine::saved_tokens().
size_t save_prefixes(const PrefixFile& file, const SharedSequences& sequences);

// Gives them to `sequences` of an engine, in a smaller cache than theirs those that were used last. Returns
// their tokens; 0 where there is no file. Throws Error(io), Error(input) for a file of another key or with
// what cannot be.
size_t load_prefixes(const PrefixFile& file, SharedSequences& sequences, const Capabilities& engine);

}  // namespace refold
