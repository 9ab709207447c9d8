// BERT's character classes as Hugging Face's tokenizers have them: the categories of Unicode 8, whatever
// version the Unicode library has. A character of a later version is no punctuation, no mark and no control
// character there.
#pragma once

namespace refold {

// Whether the library's answer about `c` (category P?; Mn; Cc, Cf, Co) has to be turned round.
bool differs_in_punctuation(char32_t c);
bool differs_in_nonspacing_mark(char32_t c);
bool differs_in_control(char32_t c);

}  // namespace refold
