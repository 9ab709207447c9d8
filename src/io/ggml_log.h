// Captures the log of ggml and libllama, so that our errors can quote their reasons and nothing else is
// printed.
#pragma once

#include <string>

namespace refold {

// Silences ggml and keeps only its error lines. May be called repeatedly and from any thread.
void capture_ggml_log();

// Forgets the error lines kept so far. Call it before an operation that may fail.
void clear_ggml_errors();
// The last error lines since clear_ggml_errors(), joined with "; ", or kNoReason.
std::string ggml_errors();
inline constexpr const char* kNoReason = "no reason given";

}  // namespace refold
