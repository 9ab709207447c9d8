// RULER's needles in a haystack (Hsieh et al. 2024, NIAH): sentences with values in a long text, and a
// question about some of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tasks/records.h"

namespace refold {

// The text around the needles: copies of five short sentences, a text of its own, or other needles.
enum class Haystack { repeat, text, needles };

// What keys and values are made of.
enum class NeedleText { words, numbers, uuids };

// The defaults are those of niah_single_1.
struct NeedleKind {
    Haystack haystack = Haystack::repeat;
    NeedleText keys = NeedleText::words, values = NeedleText::numbers;
    int64_t needles = 1;         // keys in the text, at least `asked`
    int64_t values_per_key = 1;  // each in a sentence of its own
    int64_t asked = 1;           // keys in the question
};

struct NeedleOptions {
    NeedleKind kind;
    std::string text{};     // for Haystack::text
    int64_t length = 4096;  // tokens of prompt and answer together, at most
    int64_t items = 500;
    uint64_t seed = 42;
    // Tokens of a text; unset: estimated from its words.
    std::function<int64_t(const std::string&)> count_tokens{};
};

// Fields: input, outputs (a list), gen_prefix, length (tokens), max_length. The haystack, its growth and the
// sentences are RULER's, as in lm-evaluation-harness; the items are not identical: words come from a list of
// our own, and a text is cut into sentences by simple rules. Throws Error(usage) for a length that is too
// short for any item.
std::vector<Record> make_needles(const NeedleOptions& options);

}  // namespace refold
