// Greedy text after prompts, sharing what prompts have in common.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "tasks/loglikelihood.h"

namespace refold {

// The text before the first of the stop strings; empty ones count for nothing.
std::string before_stops(std::string text, std::span<const std::string> until);

// Answers the requests (Request::scored == 0), many at a time and in an order of its own: text up to a stop
// string (which is left out), the end of generation or `max_tokens`. Special tokens are left out of the text.
using Generated = std::function<void(size_t request, const std::string& text)>;
void generate_until(BatchEngine& engine, const Tokenizer& tokenizer, Requests requests,
                    const GenerationSettings& settings, const Generated& generated);

}  // namespace refold
