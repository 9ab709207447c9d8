// BLEU (Papineni et al. 2002) as sacrebleu defines it: tokenizer 13a, mixed case, smoothing "exp", orders 1
// to 4.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

// Length of the translation, length of the closest reference, matches and n-grams of orders 1 to 4: the
// counts that a corpus sums up.
using BleuCounts = std::array<double, 10>;

// mteval-v13a's tokens.
std::vector<std::string> tokenize_13a(std::string_view text);

BleuCounts bleu_counts(std::string_view translation, std::span<const std::string> references);

// BLEU, 0 to 100, of the summed counts of one or more sentences.
double bleu(std::span<const double> counts);

}  // namespace refold
