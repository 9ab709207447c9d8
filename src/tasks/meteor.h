// METEOR (Banerjee and Lavie 2005) of one translation, as NLTK computes it, with exact matches only.
#pragma once

#include <string_view>

namespace refold {

// 0 to 1. Words are tokens of 13a (bleu.h) in lower case (of ASCII letters); each is matched with an equal
// one of the reference, last ones first. With m matches in c runs of neighbours, precision P = m / words,
// recall R = m / words of the reference: P R / (0.9 P + 0.1 R) * (1 - 0.5 (c / m)^3). NLTK also matches
// English stems and WordNet's synonyms, which other languages do not have; those are left out.
double meteor(std::string_view translation, std::string_view reference);

}  // namespace refold
