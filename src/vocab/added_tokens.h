// Added tokens: texts that are always one token ("<|im_start|>"). They split a text by the rules of Hugging
// Face's tokenizers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vocab/byte_trie.h"
#include "vocab/json_view.h"
#include "vocab/normalizer.h"

namespace refold {

struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool single_word = false;  // not inside a word
    bool lstrip = false;       // swallows the white space before it
    bool rstrip = false;       // swallows the white space after it
    bool normalized = true;    // is searched for in the normalized text
    bool special = false;      // a control token, not text
};

// `json` is one element of "added_tokens" or of "added_tokens_decoder".
AddedToken read_added_token(const JsonView& json, int32_t id);
Json to_json(const AddedToken& token);

// A part of a text: an added token, or text to encode (token < 0).
struct TextPart {
    int32_t token = -1;
    std::string text;
    bool at_start = false;  // the first part of the text
};

class AddedTokens {
public:
    AddedTokens() = default;
    AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer);

    // Splits `text` at the tokens and normalizes the text between them. Special tokens are text unless
    // `parse_special`.
    std::vector<TextPart> split(const std::string& text, const Normalizer& normalizer,
                                bool parse_special) const;
    // nullptr when `id` is not an added token.
    const AddedToken* find(int32_t id) const;
    const std::vector<AddedToken>& all() const { return tokens_; }

private:
    // Texts to search for.
    struct Patterns {
        explicit Patterns(std::vector<size_t> which = {}, const std::vector<std::string>& contents = {})
            : tokens(std::move(which)), trie(contents) {}
        std::vector<size_t> tokens;  // indices in tokens_
        ByteTrie trie;               // of their contents
    };
    void split(const Patterns& patterns, const TextPart& part, bool parse_special,
               std::vector<TextPart>& out) const;
    std::vector<AddedToken> tokens_;
    std::map<int32_t, size_t> by_id_;
    Patterns raw_, normalized_;
};

}  // namespace refold
