// The unigram language model of SentencePiece (Kudo, "Subword Regularization", 2018): a text becomes the
// tokens whose scores (log probabilities) have the largest sum.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vocab/byte_trie.h"
#include "vocab/merge_bpe.h"

namespace refold {

class Unigram {
public:
    struct Options {
        std::optional<int32_t> unknown;  // the token of what no other token covers; a run of it is one token
        bool byte_fallback = false;      // encode such a run as "<0x00>" to "<0xFF>" where possible
    };
    // `tokens` and `scores` by id.
    Unigram(std::vector<std::string> tokens, std::vector<double> scores, const Options& options);

    // Appends the ids of `text` (valid UTF-8). Throws Error(unsupported) when a character is no token and
    // there is no unknown token.
    void encode(std::string_view text, std::vector<int32_t>& out) const;

private:
    void append(std::string_view piece, std::vector<int32_t>& out) const;

    Options options_;
    std::vector<double> scores_;
    TokenIds ids_;
    ByteTrie trie_;
    double unknown_score_ = 0;
};

}  // namespace refold
