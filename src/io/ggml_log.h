// The log of ggml, and of libllama on top of it: captured, so that reasons end up in our errors and nothing
// else is printed.
#pragma once

#include <string>

namespace refold {

// Silences ggml; only its error lines are kept. Any number of calls from any thread.
void capture_ggml_log();

// Forgets the error lines kept so far, to be called before something that may fail.
void clear_ggml_errors();
// The last error lines since then, joined with "; "; "no reason given" when there are none.
std::string ggml_errors();

}  // namespace refold
