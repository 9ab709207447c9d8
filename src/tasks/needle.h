// RULER's single needle in a haystack (Hsieh et al. 2024, NIAH-single-1): one sentence with a number among
// many copies of a filler text, and a question about the number.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tasks/records.h"

namespace refold {

struct NeedleOptions {
    int64_t length = 4096;  // tokens of prompt and answer together, at most
    int64_t items = 500;
    uint64_t seed = 42;
    // Tokens of a text; unset: estimated from its words.
    std::function<int64_t(const std::string&)> count_tokens;
};

// Fields: input, outputs (a list), gen_prefix, length (tokens), max_length. The haystack, its growth and the
// sentences are RULER's, as in lm-evaluation-harness. The keywords of needles come from a list of our own, so
// the items are not identical. Throws Error(usage) for a length that is too short for any item.
std::vector<Record> make_needles(const NeedleOptions& options);

}  // namespace refold
