// libllama's process-wide state.
#pragma once

#include <string>

struct llama_model;

namespace refold {

// Captures libllama's and ggml's log (see io/ggml_log.h) and starts libllama. Must run before any other call
// into libllama. May be called any number of times from any thread.
void init_llama();

// Loads the model of a GGUF file, or only its vocabulary, on the CPU; to be freed by llama_model_free(). Null
// when libllama cannot load it: ggml_errors() then has the reasons.
llama_model* open_llama_model(const std::string& path, bool vocabulary_only);

}  // namespace refold
