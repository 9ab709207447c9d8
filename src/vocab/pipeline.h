// A complete Hugging Face tokenizer, built from the metadata that read_hf_vocabulary() sets. It leaves to
// libllama the one part that libllama does identically: the word splitting and merges of byte-level BPE with
// most patterns.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "vocab/added_tokens.h"
#include "vocab/decoder.h"
#include "vocab/merge_bpe.h"
#include "vocab/normalizer.h"
#include "vocab/post_processor.h"
#include "vocab/splitter.h"
#include "vocab/unigram.h"
#include "vocab/wordpiece.h"

namespace refold {

class HfPipeline {
public:
    // Encodes a text without special tokens by byte-level BPE and appends the ids.
    using ByteLevelBpe = std::function<void(const std::string& text, std::vector<int32_t>& ids)>;

    // Whether the vocabulary came from Hugging Face files.
    static bool is_described(const GgufMetadata& metadata);
    // Throws Error(input) when keys contradict each other, Error(unsupported) for unknown steps.
    HfPipeline(const GgufMetadata& metadata, const std::string& label);

    std::vector<int32_t> encode(const std::string& text, bool parse_special, const ByteLevelBpe& bpe) const;
    const PostProcessor& post_processor() const { return post_processor_; }
    // The ids must be in range.
    std::string decode(std::span<const int32_t> ids, bool special) const;
    // The bytes of one token.
    std::string piece(int32_t id, bool special) const;

    bool is_byte_level() const { return model_ == "gpt2"; }
    int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

private:
    TokenIds model_ids() const;
    // Leaves the ids of the model's own tokens.
    static void leave_own(const JsonView& model, TokenIds& ids);
    void read_merges(const GgufMetadata& metadata, const JsonView& model);
    void read_word_pieces(const JsonView& json);
    void read_byte_level(const GgufMetadata& metadata, const JsonView& json);
    void read_metaspace(const JsonView& json);
    void read_unigram(const GgufMetadata& metadata, const JsonView& json);
    std::optional<int32_t> unknown_id(const JsonView& model, const TokenIds& ids) const;
    void check_ids(const std::string& label) const;
    void encode_text(const TextPart& part, const ByteLevelBpe& bpe, std::vector<int32_t>& ids) const;
    void encode_bytes(const std::string& text, const ByteLevelBpe& bpe, std::vector<int32_t>& ids) const;

    std::string model_;
    std::vector<std::string> tokens_;
    Normalizer normalizer_;
    AddedTokens added_;
    PostProcessor post_processor_;
    Decoder decoder_;
    bool clean_up_ = false;
    bool add_prefix_space_ = false;
    std::vector<bool> missing_bytes_;
    Splitter splitter_;
    std::optional<MergeBpe> bpe_;
    std::optional<Unigram> unigram_;
    std::optional<WordPiece> word_piece_;
};

}  // namespace refold
