// BERT's character classes in Hugging Face's tokenizers: the categories of Unicode 8, independent of the
// version of the Unicode library. Characters of later versions are neither punctuation nor marks nor control
// characters.
#pragma once

namespace refold {

// Whether the library's answer about `c` (category P?; Mn; Cc, Cf, Co) must be inverted.
bool differs_in_punctuation(char32_t c);
bool differs_in_nonspacing_mark(char32_t c);
bool differs_in_control(char32_t c);

}  // namespace refold
