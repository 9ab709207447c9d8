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
// nothing is kept, the file stays as it is. Returns their tokens. Throws Error(io), and as
// Engine::save_tokens().
size_t save_prefixes(const PrefixFile& file, const SharedSequences& sequences);

// Gives them to `sequences`, which has none yet: where there is less room than there was, those that were
// used last, but none that another one begins with. Returns their tokens; 0 where there is no file. Throws
// Error(io), Error(input) for a file of another key or with what cannot be, and as Engine::load_tokens().
size_t load_prefixes(const PrefixFile& file, SharedSequences& sequences);

}  // namespace refold
