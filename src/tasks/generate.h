// Greedy text after prompts, sharing what prompts have in common.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "engine/engine.h"
#include "tasks/loglikelihood.h"

namespace refold {

// The text before the first of the stop strings; empty ones count for nothing.
std::string before_stops(std::string text, std::span<const std::string> until);

// What generate_until() makes of the likeliest tokens: `first`, and `next(token)` behind each.
std::string greedy_text(const Tokenizer& tokenizer, const GenerationSettings& settings, int32_t first,
                        const std::function<int32_t(int32_t token)>& next);

// Answers the requests (Request::scored == 0), in an order of its own: text up to a stop string (which is
// left out), the end of generation or `max_tokens`. Special tokens are left out of the text.
// Throws Error(usage) for an engine whose KV cache evicts rows.
using Generated = std::function<void(size_t request, const std::string& text)>;
void generate_until(Engine& engine, const Tokenizer& tokenizer, Requests requests,
                    const GenerationSettings& settings, const Generated& generated);

}  // namespace refold
