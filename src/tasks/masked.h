// Masks filled by encoders: log likelihoods of choices and answers, and the likeliest tokens.
#pragma once

#include <span>

#include "tasks/generate.h"
#include "tasks/loglikelihood.h"

namespace refold {

// Answers the requests (made with PromptOptions::encoder) in their order by pseudo log likelihood (Salazar et
// al. 2020): the sum over a choice's tokens of log P(token | everything else), each masked in turn. Choices
// of one token at the same position take one pass together. Where Request::together is set, all the scored
// tokens are masked in one pass.
void masked_likelihoods(Engine& engine, int32_t mask_token, Requests requests, const Answered& answered);

// The text of the likeliest tokens for all masks of each request (Request::scored == 0), found in one pass.
void fill_masks(Engine& engine, const Tokenizer& tokenizer, Requests requests, const Generated& generated);

}  // namespace refold
