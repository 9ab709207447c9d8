// SentencePiece's "precompiled_charsmap": characters, or short sequences of them, and what replaces them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

// The file holds the size of a double-array trie in bytes, the trie (Yata et al., "A compact static
// double-array keeping character codes", as in the library Darts-clone), and the replacements, each ended by
// a zero byte.
class CharMap {
public:
    // Throws Error(input) naming `where` when `bytes` are none.
    CharMap(std::string_view bytes, const std::string& where);

    // Replaces as Hugging Face's tokenizers do, which differs from SentencePiece: a grapheme cluster of up to
    // five bytes is replaced as a whole by what its shortest mapped beginning maps to; in others every code
    // point is replaced by itself.
    // Throws Error(unsupported) when the result would be longer than `longest` bytes.
    std::string replaced(std::string_view text, size_t longest) const;

private:
    std::optional<std::string_view> find(std::string_view chunk) const;

    std::vector<uint32_t> units_;
    std::string replacements_;
};

}  // namespace refold
