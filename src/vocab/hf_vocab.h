// Converts Hugging Face tokenizers to GGUF vocabularies and back. The keys are those of llama.cpp's
// converter, so libllama can run the vocabulary. Two more keys keep the details that libllama handles
// differently, for Tokenizer (text/tokenizer.h) and for converting back:
//   refold.tokenizer.json    tokenizer.json without vocabulary and merges
//   refold.tokenizer.config  the fields of tokenizer_config.json that change ids or texts
#pragma once

#include <cstdint>
#include <filesystem>

#include "io/gguf.h"

namespace refold {

inline constexpr const char* kTokenizerJsonKey = "refold.tokenizer.json";
inline constexpr const char* kTokenizerConfigKey = "refold.tokenizer.config";
// The scores of a unigram vocabulary where they are no float32 numbers.
inline constexpr const char* kTokenizerScoresKey = "refold.tokenizer.scores";
// Why a model has no tokenizer although it came with tokenizer files.
inline constexpr const char* kTokenizerReasonKey = "refold.tokenizer.unsupported";

// Reads the tokenizer of a checkpoint folder (tokenizer.json, else tokenizer.model, spiece.model,
// sentencepiece.bpe.model or tiktoken.model, else vocab.json with merges.txt, else vocab.txt, else
// *.tiktoken), applies tokenizer_config.json and its companions, and sets the keys tokenizer.* and
// refold.tokenizer.*. `vocab_size` is the number of rows of the embedding; ids without a token become
// "[PAD<id>]". Returns false and leaves `metadata` unchanged when the folder has no tokenizer. Throws
// Error(io) when a file cannot be read, Error(input) naming file and field when a file is malformed,
// contradicts another or has ids beyond `vocab_size`, and Error(unsupported) quoting a kind of tokenizer that
// cannot be run exactly.
bool read_hf_vocabulary(const std::filesystem::path& folder, int64_t vocab_size, GgufMetadata& metadata);

// Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json and, for BERT, vocab.txt, from which
// transformers loads a fast tokenizer with the same ids. Vocabularies that did not come from Hugging Face
// files work too; llama.cpp's defaults then fill in for missing keys. Throws Error(input) for contradictory
// keys, Error(unsupported) for a tokenizer.ggml.model other than gpt2, llama, bert and t5 or a pre-tokenizer
// without a known pattern, Error(io) when a file cannot be written.
void write_hf_vocabulary(const GgufMetadata& metadata, const std::filesystem::path& folder);

}  // namespace refold
