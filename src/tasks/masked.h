// Log likelihoods of choices that fill a mask, for encoders.
#pragma once

#include <span>

#include "tasks/loglikelihood.h"

namespace refold {

// Answers the requests (made with PromptOptions::encoder) in their order by pseudo log likelihood (Salazar et
// al. 2020): the sum over a choice's tokens of log P(token | everything else), each masked in turn. Choices
// of one token at the same position take one pass together.
void masked_likelihoods(Engine& engine, int32_t mask_token, Requests requests, const Answered& answered);

}  // namespace refold
