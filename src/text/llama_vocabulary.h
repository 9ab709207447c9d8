// Vocabularies in libllama.
#pragma once

#include <memory>
#include <string>

#include "io/gguf.h"

struct llama_model;

namespace refold {

struct LlamaModelDeleter {
    void operator()(llama_model* model) const;
};
using LlamaModel = std::unique_ptr<llama_model, LlamaModelDeleter>;

// Loads the vocabulary of a GGUF file. Throws Error(io) when the file cannot be read, Error(unsupported) when
// libllama cannot run its vocabulary.
LlamaModel load_llama_vocabulary(const std::string& path);
// Loads the vocabulary described by the keys "tokenizer.*"; `label` names it in errors.
LlamaModel load_llama_vocabulary(const GgufMetadata& metadata, const std::string& label);

}  // namespace refold
