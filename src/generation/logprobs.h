#pragma once

#include <cstdint>
#include <span>

#include "refold/generation.h"

namespace refold {

// The log probability of `token` in the softmax of the logits, with the `top` likeliest tokens.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int top);

}  // namespace refold
