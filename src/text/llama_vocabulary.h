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

// The vocabulary of a GGUF file. Throws Error(io) when it cannot be read, Error(unsupported) when it has no
// vocabulary that libllama runs.
LlamaModel load_llama_vocabulary(const std::string& path);
// The vocabulary that the keys "tokenizer.*" describe; `label` names it in errors.
LlamaModel load_llama_vocabulary(const GgufMetadata& metadata, const std::string& label);

}  // namespace refold
