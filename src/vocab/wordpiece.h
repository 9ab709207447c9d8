// BERT's splitting of a normalised text into words, and of words into the longest pieces.
#pragma once

#include <string_view>
#include <vector>

#include "vocab/merge_bpe.h"

namespace refold {

class WordPiece {
public:
    struct Options {
        int32_t unknown = 0;
        std::string prefix = "##";  // of pieces inside a word
        size_t longest_word = 100;  // characters; longer ones are unknown
    };
    WordPiece(TokenIds ids, Options options);
    void encode(std::string_view text, std::vector<int32_t>& out) const;

private:
    void encode_word(std::u32string_view word, std::vector<int32_t>& out) const;

    TokenIds ids_;
    Options options_;
};

}  // namespace refold
