// Log likelihoods of continuations, sharing what requests have in common.
#pragma once

#include <functional>
#include <span>

#include "engine/batch.h"
#include "tasks/request.h"

namespace refold {

struct Likelihood {
    double log_likelihood = 0;
    bool greedy = true;  // every token of the continuation is the likeliest
};

// The first of the largest.
int32_t likeliest(std::span<const float> logits);

// log P(token | what `logits` saw), and whether it is the likeliest.
Likelihood likelihood_of(std::span<const float> logits, int32_t token);

// Answers the requests (Request::scored > 0), many in one step and in an order of its own: tokens that follow
// the same tokens are evaluated once, be they few-shot examples, a question with several choices or the whole
// input of choices of one token. Logits are computed of the continuations only.
using Requests = std::span<const Request* const>;
using Answered = std::function<void(size_t request, const Likelihood&)>;
void log_likelihoods(BatchEngine& engine, Requests requests, const Answered& answered);

}  // namespace refold
