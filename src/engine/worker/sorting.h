// Orders of rows by their numbers, for a worker's CPU: ggml's kernels read beyond a row where numbers are not
// comparable (NaN) or change meanwhile.
#pragma once

#include <ggml.h>

namespace refold::rpc {

// Lets ARGSORT and TOP_K, which problem_of() has checked, be computed with the same results, and with NaN as
// the least number. Other operations stay as they are.
void sort_safely(ggml_tensor* operation);

}  // namespace refold::rpc
