// The Unicode operations that Hugging Face's normalizers and pre-tokenizers use, on UTF-8 text. Invalid bytes
// count as U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace refold {

std::u32string to_code_points(std::string_view utf8);
// Bytes of the code point that starts at text[at].
size_t code_point_size(std::string_view utf8, size_t at);
void append_utf8(std::string& text, char32_t code_point);
// Replaces invalid UTF-8 as Rust and the WHATWG do: one U+FFFD for every maximal invalid subsequence.
std::string replace_invalid_utf8(std::string_view bytes);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normalize(std::string_view utf8, NormalForm form);

// Full lower case, character by character (no final-sigma rule, no locale).
std::string lower_case(std::string_view utf8);
// One character for one, as regular expressions ignore case.
char32_t simple_lower(char32_t c);
char32_t simple_upper(char32_t c);
char32_t simple_fold(char32_t c);  // the long s becomes "s"
// General categories as sets of bits: that of a character, and those of a property ("L", "Lu", "N"), 0 for a
// name that is none.
uint32_t category_bit(char32_t c);
uint32_t category_bits(std::string_view property);
bool is_numeric(char32_t c);
// Where the extended grapheme cluster (what a reader takes for one character) at `at` ends.
size_t grapheme_end(std::u32string_view text, size_t at);
bool is_white_space(char32_t c);
bool is_mark(char32_t c);
// BERT's rules: an accent is a nonspacing mark; tab, line feed and carriage return are white space, not
// control characters; ASCII symbols are punctuation.
bool is_bert_accent(char32_t c);
bool is_bert_control(char32_t c);
bool is_bert_punctuation(char32_t c);
bool is_cjk_ideograph(char32_t c);
// \w of Rust's regular expressions.
bool is_word_character(char32_t c);

}  // namespace refold
