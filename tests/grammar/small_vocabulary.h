// The tokenizer of the tests: 512 tokens, all bytes among them.
#pragma once

#include <gtest/gtest.h>

#include "grammar/grammar.h"
#include "io/gguf.h"
#include "vocab/hf_vocab.h"

namespace refold {

constexpr int64_t kVocab = 512;  // more than the tokenizer has, as padded models do

inline const Tokenizer& tokenizer() {
    static const Tokenizer instance = [] {
        GgufMetadata metadata;
        EXPECT_TRUE(read_hf_vocabulary(REFOLD_FIXTURES "/tokenizers/bpe_gpt2", kVocab, metadata));
        return Tokenizer(metadata, "bpe_gpt2");
    }();
    return instance;
}

inline GrammarCompiler& compiler() {
    static GrammarCompiler instance(tokenizer(), kVocab);
    return instance;
}

}  // namespace refold
