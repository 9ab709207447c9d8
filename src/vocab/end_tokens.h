// Tokens that end an answer, and generation_config.json, which names them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/gguf.h"

namespace refold {

// The text of generation_config.json.
inline constexpr const char* kGenerationConfigKey = "refold.generation_config";
// The ids that a checkpoint's files name as ends, where they are not its EOS alone. libllama does not know
// them all: it has a key for each kind of end, and others it knows by their spelling.
inline constexpr const char* kEndTokensKey = "refold.tokenizer.end_token_ids";

struct TokenizerSettings;

// "eos_token_id", a number or a list: of generation_config.json where there is this file, else of
// config.json, else of its text model, as transformers takes it. Ids outside the vocabulary (-1: none) are
// left out.
std::vector<int32_t> named_end_tokens(const TokenizerSettings& settings, int64_t vocab_size);

// Sets kGenerationConfigKey when the folder has the file. Throws Error(input) when it is no JSON object.
void keep_generation_config(const std::filesystem::path& folder, GgufMetadata& metadata);

// The file as it was kept; else, for a vocabulary with more ends than its EOS, one that names them. Throws
// Error(input) when the key does not hold a JSON object, Error(io) when the file cannot be written.
void write_generation_config(const GgufMetadata& metadata, const std::filesystem::path& folder);

}  // namespace refold
