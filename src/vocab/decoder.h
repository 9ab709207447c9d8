// The "decoder" of a tokenizer.json, which turns tokens back into a text.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vocab/json_view.h"

namespace refold {

// The bytes that a token of byte-level BPE encodes. A token with a character outside the byte alphabet (an
// added token) is returned as it is.
std::string byte_level_bytes(std::string_view token);
// The character that encodes a byte in byte-level BPE.
char32_t byte_level_character(unsigned char byte);
// The byte of "<0x0A>", or -1.
int byte_of_token(std::string_view token);
// transformers' clean_up_tokenization: removes spaces before punctuation and English contractions.
std::string clean_up_spaces(std::string text);

class Decoder {
public:
    // Joins tokens with spaces.
    Decoder() = default;
    // Throws Error(unsupported) quoting an unknown step.
    explicit Decoder(const JsonView& json);

    std::string operator()(std::vector<std::string> tokens) const;

private:
    using Tokens = std::vector<std::string>;
    void add(const JsonView& json, int depth);
    void add_metaspace(const JsonView& json);
    void add_strip(const JsonView& json);
    void add_word_piece(const JsonView& json);

    std::vector<std::function<Tokens(Tokens)>> steps_;
};

}  // namespace refold
