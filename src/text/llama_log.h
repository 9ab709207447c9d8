// libllama's process-wide state: its logging is captured, its backends are started once.
#pragma once

#include <string>

namespace refold {

// Silences libllama and ggml (only their error lines are kept) and starts libllama. Must run before any other
// call into libllama; any number of calls from any thread.
void init_llama();

// Forgets the error lines kept so far, to be called before something that may fail.
void clear_llama_errors();
// The last error lines since then, joined with "; "; "no reason given" when there are none.
std::string llama_errors();

}  // namespace refold
