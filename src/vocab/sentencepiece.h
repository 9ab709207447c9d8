// What is read of a SentencePiece model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vocab/vocabulary.h"

namespace refold {

struct SentencePiece {
    std::string text;
    float score = 0;
    uint64_t type = kNormalToken;
};

struct SentencePieceModel {
    std::string source;  // the file, for errors
    std::vector<SentencePiece> pieces;
    uint64_t type = 1;  // 1: unigram, 2: BPE
    bool byte_fallback = false;
    bool space_prefix = true, removes_spaces = true, escapes_spaces = true, suffix = false;
    std::string char_map;  // precompiled_charsmap
    std::string unknown = "<unk>";
    int64_t unknown_id = 0;
};

// The vocabulary that transformers makes of a unigram model for the tokenizer class that the settings name.
// Some classes put tokens before and after the pieces. Throws Error(unsupported) naming a class that is not
// known.
Vocabulary unigram_vocabulary(const SentencePieceModel& model, const TokenizerSettings& settings,
                              int64_t vocab_size);

}  // namespace refold
