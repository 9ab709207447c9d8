// The folder of a sentence-transformers model: modules.json and what it names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "model/embedding_config.h"

namespace refold {

// Nothing when the folder has no modules.json. `n_embd` is the width of the encoder. Throws Error(io) when a
// file cannot be read, Error(input) naming a file that is malformed or does not fit, Error(unsupported)
// naming the file and the module or field that is not known.
std::optional<EmbeddingConfig> read_sentence_modules(const std::filesystem::path& folder, int64_t n_embd);

}  // namespace refold
