// A vocabulary between the files it is read from and the metadata it becomes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "vocab/added_tokens.h"
#include "vocab/json_view.h"

namespace refold {

// The values of tokenizer.ggml.token_type.
enum TokenType : int32_t {
    kNormalToken = 1,
    kUnknownToken = 2,
    kControlToken = 3,
    kUserDefinedToken = 4,
    kUnusedToken = 5,
    kByteToken = 6,
};

struct Vocabulary {
    std::string source;                              // the file, for errors
    std::string model;                               // tokenizer.ggml.model: "gpt2", "llama", "bert"
    std::vector<std::optional<std::string>> tokens;  // by id, as Hugging Face spells them
    std::vector<std::string> merges;                 // "left right", best first
    std::vector<float> scores;                       // by id, of a SentencePiece model; else empty
    Json skeleton;                                   // kTokenizerJsonKey

    // Throws Error(input) when the id is not below `vocab_size` or has another token.
    void set(int64_t id, const std::string& token, int64_t vocab_size);
    std::optional<int32_t> find(const std::string& token) const;
};

// The tokens of a GGUF vocabulary as Hugging Face spells them.
std::vector<std::string> hf_tokens(const GgufMetadata& metadata);
// The spelling that libllama wants: BERT's pieces have a mark before whole words instead of "##" inside them.
std::string llama_spelling(const std::string& model, const std::string& token, TokenType type);

// What the companions of a tokenizer file say.
struct TokenizerSettings {
    std::filesystem::path folder;
    Json config = Json::object();  // tokenizer_config.json
    Json special_map = Json::object();
    Json added = Json::object();       // added_tokens.json
    Json generation = Json::object();  // generation_config.json
    Json model = Json::object();       // config.json
    std::optional<std::string> chat_template;

    // "BertTokenizer" for "BertTokenizerFast"; from config.json's model_type when nothing names it; may be
    // "".
    std::string tokenizer_class() const;
    // The text of "bos", "eos", "unk", "sep", "pad", "cls" or "mask".
    std::optional<std::string> special(const std::string& name) const;
};
TokenizerSettings read_settings(const std::filesystem::path& folder);

Vocabulary read_tokenizer_json(const std::filesystem::path& file, int64_t vocab_size);
Vocabulary read_sentencepiece(const std::filesystem::path& file, int64_t vocab_size);
Vocabulary read_bpe_files(const TokenizerSettings& settings, int64_t vocab_size);
Vocabulary read_word_list(const TokenizerSettings& settings, int64_t vocab_size);

// What transformers changes in a tokenizer file by its companions: more added tokens, other flags.
void apply_settings(const TokenizerSettings& settings, int64_t vocab_size, Vocabulary& vocabulary);

// Sets the keys; everything must be in range by now.
void set_metadata(const Vocabulary& vocabulary, const TokenizerSettings& settings, int64_t vocab_size,
                  GgufMetadata& metadata);

// Skeletons by kind; `added_tokens` are left to the caller.
Json byte_level_skeleton(const Json& pre_tokenizer, const Json& normalizer, bool ignore_merges);
Json sentencepiece_skeleton(bool space_prefix, bool byte_fallback, const std::string& unknown);
Json word_piece_skeleton(bool lower_case, const Json& strip_accents, bool chinese,
                         const std::string& unknown);
// "post_processor" for special tokens around a text; a name is a token of the vocabulary.
struct SpecialToken {
    int32_t id;
    std::string content;
};
Json template_processor(const std::vector<SpecialToken>& before, const std::vector<SpecialToken>& after);
Json bert_processor(const char* type, const SpecialToken& cls, const SpecialToken& sep);

}  // namespace refold
