// A vocabulary that has been read from files and is about to become metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
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
    std::string model;                               // tokenizer.ggml.model: "gpt2", "llama", "bert", "t5"
    std::vector<std::optional<std::string>> tokens;  // by id, as Hugging Face spells them
    std::vector<std::string> merges;                 // "left right", best first
    std::vector<double> scores;                      // by id, of a SentencePiece or unigram model; else empty
    Json skeleton;                                   // kTokenizerJsonKey
    std::map<std::string, std::string> specials;     // "bos" -> "<s>", where no file names one
    std::set<int32_t> added_only;                    // added tokens that the model's own vocabulary lacks

    // Throws Error(input) when the id is not below `vocab_size` or already has another token.
    void set(int64_t id, const std::string& token, int64_t vocab_size);
    void add(const AddedToken& token, int64_t vocab_size);
    std::optional<int32_t> find(const std::string& token) const;
    // SentencePiece's BPE, which merges by score.
    bool merges_by_score() const { return model == "llama" && !scores.empty(); }
};

// The first step of that type in a normalizer or pre-tokenizer (or null), which may be a Sequence; else
// nullptr.
const Json* find_step(const Json& json, const std::string& type);

// The tokens of a GGUF vocabulary in Hugging Face's spelling.
std::vector<std::string> hf_tokens(const GgufMetadata& metadata);
// libllama's spelling: BERT's tokens have a mark before whole words instead of "##" inside them.
std::string llama_spelling(const std::string& model, const std::string& token, TokenType type);

// The files that accompany a tokenizer file.
struct TokenizerSettings {
    std::filesystem::path folder;
    Json config = Json::object();  // tokenizer_config.json
    Json special_map = Json::object();
    Json added = Json::object();  // added_tokens.json
    Json generation;              // generation_config.json; null without the file
    Json model = Json::object();  // config.json
    std::optional<std::string> chat_template;

    // The class without "Fast" ("BertTokenizer"), else derived from config.json's model_type, else "".
    std::string tokenizer_class() const;
    // The text of "bos", "eos", "unk", "sep", "pad", "cls" or "mask".
    std::optional<std::string> special(const std::string& name) const;
};
TokenizerSettings read_settings(const std::filesystem::path& folder);

Vocabulary read_tokenizer_json(const std::filesystem::path& file, int64_t vocab_size);
Vocabulary read_sentencepiece(const std::filesystem::path& file, const TokenizerSettings& settings,
                              int64_t vocab_size);
// Whether the file is a tiktoken vocabulary.
bool is_tiktoken(const std::filesystem::path& file);
Vocabulary read_tiktoken(const std::filesystem::path& file, const TokenizerSettings& settings,
                         int64_t vocab_size);
Vocabulary read_bpe_files(const TokenizerSettings& settings, int64_t vocab_size);
Vocabulary read_word_list(const TokenizerSettings& settings, int64_t vocab_size);

// Applies the changes that transformers makes because of the companion files: more added tokens, other flags.
void apply_settings(const TokenizerSettings& settings, int64_t vocab_size, Vocabulary& vocabulary);

// Sets the keys. All ids must be in range.
void set_metadata(const Vocabulary& vocabulary, const TokenizerSettings& settings, int64_t vocab_size,
                  GgufMetadata& metadata);

// tokenizer.json without vocabulary, by kind of tokenizer. The caller adds `added_tokens`.
Json byte_level_skeleton(const Json& pre_tokenizer, const Json& normalizer, bool ignore_merges);
Json sentencepiece_skeleton(bool space_prefix, bool byte_fallback, const std::string& unknown);
// The "model" of a unigram vocabulary. Its own tokens come first; added tokens may follow, which take no part
// in encoding. "vocab", the list of its own, is not kept, so kOwnSize says how many there are.
inline constexpr const char* kOwnSize = "own_size";
Json unigram_model(std::optional<int32_t> unknown, bool byte_fallback, size_t size);
// Of the "model" of the other kinds: the texts of added tokens that its own vocabulary lacks. They take no
// part in encoding where they are not recognized as added tokens, as within a word.
inline constexpr const char* kAddedOnly = "added_only";
// `char_map`: base64 or empty. `prepend_scheme`: of Metaspace.
struct UnigramSkeleton {
    std::string char_map, prepend_scheme = "always";
    bool merges_spaces = true;  // spaces at the end go, and of several spaces one stays
    std::optional<int32_t> unknown;
    size_t size = 0;  // tokens of the model itself
};
Json unigram_skeleton(const UnigramSkeleton& options);
Json word_piece_skeleton(bool lower_case, const Json& strip_accents, bool chinese,
                         const std::string& unknown);
struct SpecialToken {
    int32_t id;
    std::string content;
};
// The "post_processor" that puts special tokens around a text, and around both texts of a pair, whose second
// is of type 1 where the model has `types`.
Json template_processor(const std::vector<SpecialToken>& before, const std::vector<SpecialToken>& after,
                        bool types = true);
Json bert_processor(const char* type, const SpecialToken& cls, const SpecialToken& sep);

}  // namespace refold
