// WordPiece, BERT's tokenization: splits a normalized text into words, and words greedily into the longest
// tokens.
#pragma once

#include <string_view>
#include <vector>

#include "vocab/merge_bpe.h"

namespace refold {

class WordPiece {
public:
    struct Options {
        int32_t unknown = 0;
        std::string prefix = "##";  // of tokens inside a word
        size_t longest_word = 100;  // in characters; a longer word is unknown
    };
    WordPiece(TokenIds ids, Options options);
    void encode(std::string_view text, std::vector<int32_t>& out) const;

private:
    void encode_word(std::u32string_view word, std::vector<int32_t>& out) const;

    TokenIds ids_;
    Options options_;
    size_t longest_ = 0;  // bytes of a token
};

}  // namespace refold
