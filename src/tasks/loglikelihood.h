// Log likelihoods of continuations. Requests share the computation of their common beginnings.
#pragma once

#include <functional>
#include <span>

#include "engine/engine.h"
#include "tasks/request.h"

namespace refold {

struct Likelihood {
    double log_likelihood = 0;
    bool greedy = true;  // every token of the continuation is the likeliest one
};

// Index of the largest logit; of equal ones the first.
int32_t likeliest(std::span<const float> logits);

// Log likelihood of `token` under `logits` [n_vocab], and whether it is the likeliest token.
Likelihood likelihood_of(std::span<const float> logits, int32_t token);

// Answers the requests (Request::scored > 0), many in one step and in any order. A common beginning of
// requests is evaluated once: few-shot examples, a question with several choices, or the whole input if
// choices are one token. Logits are computed for the continuations only.
using Requests = std::span<const Request* const>;
using Answered = std::function<void(size_t request, const Likelihood&)>;
void log_likelihoods(Engine& engine, Requests requests, const Answered& answered);

}  // namespace refold
