#pragma once

#include <span>

#include "serve/scheduler.h"

namespace refold {

// Of `token` in the softmax of the logits, with so many likeliest tokens.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token, int top);

}  // namespace refold
