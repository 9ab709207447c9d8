// Greedy text after prompts, for tasks that compare texts.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "generation/generator.h"
#include "tasks/loglikelihood.h"

namespace refold {

// The text of each request's continuation, which ends before a stop string.
using Generated = std::function<void(size_t request, const std::string& text)>;

// The requests for a generator: greedy, up to a stop string, the end of generation or `max_tokens`.
std::vector<GenerationRequest> generation_requests(Requests requests, const GenerationSettings& settings);

// Text of tokens as lm-evaluation-harness decodes it: without special tokens, valid UTF-8.
DecodeTokens task_decoder(const Tokenizer& tokenizer);

// Answers the requests (Request::scored == 0), many at a time and in an order of its own.
void generate_until(Engine& engine, const Tokenizer& tokenizer, Requests requests,
                    const GenerationSettings& settings, const Generated& generated);

}  // namespace refold
