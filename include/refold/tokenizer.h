// Tokenizers and chat templates.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace refold {

class GgufMetadata;

// Two texts as one row of an encoder.
struct PairEncoding {
    std::vector<int32_t> ids;
    std::vector<int32_t> token_types;  // the segment of every id: 0 or 1
};

struct ChatMessage {
    std::string role;  // "system", "user", "assistant"
    std::string content;
};

// A model's tokenizer and chat template, by libllama on the model's own GGUF vocabulary. A vocabulary from
// Hugging Face files gives the tokens of Hugging Face's tokenizers: this class corrects libllama where they
// differ. All functions may be called from any thread.
class Tokenizer {
public:
    // From a GGUF file, of which only the metadata is read (tensors may be missing or shared), or from a
    // Hugging Face directory. Throws Error(io) when it cannot be read, Error(input) when it is malformed,
    // Error(unsupported) when it has no supported tokenizer.
    explicit Tokenizer(const std::string& path);
    // Internal: from the keys "tokenizer.*" and "refold.tokenizer.*"; `label` names the vocabulary in errors.
    // Throws Error(input) when keys contradict each other, Error(unsupported) as above.
    Tokenizer(const GgufMetadata& metadata, const std::string& label);
    ~Tokenizer();
    Tokenizer(const Tokenizer&) = delete;
    Tokenizer& operator=(const Tokenizer&) = delete;

    // `add_special`: adds BOS/EOS when the model asks for them. `parse_special`: special tokens written in
    // the text ("<|im_start|>") become their ids.
    std::vector<int32_t> encode(const std::string& text, bool add_special, bool parse_special) const;
    // Two texts for an encoder, with its special tokens around them; special tokens written in the texts
    // become their ids. Throws Error(unsupported) when the vocabulary does not define how pairs are joined.
    PairEncoding encode_pair(const std::string& first, const std::string& second) const;
    // With `special`, special tokens become text; else they are dropped. Exact for byte-level BPE:
    // decode(encode(text)) == text. A SentencePiece vocabulary normalizes ("▁" becomes a space). A vocabulary
    // from Hugging Face files may normalize more, and gives U+FFFD for bytes that are no UTF-8. Throws
    // Error(input) for ids out of range.
    std::string decode(std::span<const int32_t> tokens, bool special) const;
    // The bytes of one token; may be part of a UTF-8 character.
    std::string piece(int32_t token, bool special) const;

    int32_t size() const;
    bool adds_bos() const;
    std::optional<int32_t> bos() const;
    std::optional<int32_t> eos() const;
    std::optional<int32_t> mask() const;
    bool is_end_of_generation(int32_t token) const;  // EOS, or another end that the model names

    bool has_chat_template() const;
    // Jinja source of the chat template. Throws Error(unsupported) when there is none.
    std::string chat_template() const;
    // The model's own template applied to `messages`, ending with the opening of the assistant's turn.
    // libllama recognizes formats of templates and runs no Jinja, so a system message that the template
    // itself would add is missing. Throws Error(unsupported) when there is no template or libllama does not
    // know it.
    std::string apply_chat_template(std::span<const ChatMessage> messages) const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
