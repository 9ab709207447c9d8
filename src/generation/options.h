// Checks of the options of refold/generation.h, in one place for all callers.
#pragma once

#include <cstdint>

#include "refold/generation.h"

namespace refold {

// Throws Error(usage) that names the option, its value and its range. With `n_vocab`, token ids must be below
// it; 0: unknown.
void check_sampling(const SamplingOptions& options, int64_t n_vocab = 0);
void check_generation(const GenerationOptions& options, int64_t n_vocab = 0);

}  // namespace refold
