// Captures the log of ggml and libllama, so that our errors can quote their reasons and nothing else is
// printed.
#pragma once

#include <string>

namespace refold {

// Silences ggml and keeps only its error lines. May be called repeatedly and from any thread.
void capture_ggml_log();

// Forgets the error lines kept so far. Call it before an operation that may fail.
void clear_ggml_errors();
// The last error lines since clear_ggml_errors(), joined with "; ", or "no reason given".
std::string ggml_errors();

}  // namespace refold
