// libllama's process-wide state.
#pragma once

namespace refold {

// Captures libllama's and ggml's log (see io/ggml_log.h) and starts libllama. Must run before any other call
// into libllama; any number of calls from any thread.
void init_llama();

}  // namespace refold
