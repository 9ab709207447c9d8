// libllama's process-wide state.
#pragma once

#include <span>
#include <string>

struct ggml_backend_device;
struct llama_model;

namespace refold {

// Captures libllama's and ggml's log (see io/ggml_log.h) and starts libllama. Must run before any other call
// into libllama. May be called any number of times from any thread.
void init_llama();

// Loads the model of a GGUF file, or only its vocabulary; to be freed by llama_model_free(). Null when
// libllama cannot load it: ggml_errors() then has the reasons. Its last `gpu_layers` layers (fewer than 0:
// all, and the output) lie on the devices; without devices, all are on the CPU.
llama_model* open_llama_model(const std::string& path, bool vocabulary_only,
                              std::span<ggml_backend_device* const> devices = {}, int64_t gpu_layers = -1);

}  // namespace refold
