// libllama's process-wide state.
#pragma once

#include <string>

struct llama_model;

namespace refold {

// Captures libllama's and ggml's log (see io/ggml_log.h) and starts libllama. Must run before any other call
// into libllama; any number of calls from any thread.
void init_llama();

// The model, or only its vocabulary, of a GGUF file on the CPU, to be freed by llama_model_free(). Null when
// libllama cannot load it: ggml_errors() then has its reasons.
llama_model* open_llama_model(const std::string& path, bool vocabulary_only);

}  // namespace refold
