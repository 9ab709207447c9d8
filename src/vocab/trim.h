// Vocabularies with fewer tokens. All text still encodes, and a text whose tokens all stay encodes to the
// same tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "io/gguf.h"

namespace refold {

// The ids of the tokens that stay, ascending in the vocabulary that was trimmed first: the position is the
// present id. Absent in a vocabulary that was never trimmed.
inline constexpr const char* kKeptTokensKey = "refold.vocabulary.kept";

// The smallest set of tokens that holds the `wanted` ones (by id) and with which all text still encodes,
// ascending:
// - tokens that are not plain text (control, user-defined, unknown, byte), those spelled "<...>", and every
// one
//   that the metadata name by its id;
// - byte-level BPE: the alphabet of 256 characters. SentencePiece: the mark of spaces and ASCII characters;
//   without byte tokens every single character;
// - the tokens that merging passes through until it reaches one that stays. Merges take the best pair first,
// and
//   those inside a token do not depend on the text around it, so the merges of a text whose tokens all stay
//   are the same without the others.
// Throws Error(unsupported) for a kind of vocabulary other than byte-level BPE and SentencePiece's BPE,
// Error(input) when keys contradict each other.
std::vector<int32_t> needed_tokens(const GgufMetadata& metadata, const std::vector<bool>& wanted);

// The metadata with only the tokens `kept` (ascending), which get the ids 0, 1, ...: lists by token are cut,
// merges of other tokens left out, ids replaced (also in the Hugging Face tokenizer and config.json that the
// metadata keep). Throws Error(unsupported) for a list of numbers under "tokenizer." that is neither by token
// nor of ids.
GgufMetadata keep_tokens(const GgufMetadata& metadata, const std::vector<int32_t>& kept);

}  // namespace refold
