// Cuts long texts at special tokens. libllama looks for each kind of special token behind each one that it
// has found, which takes a time that grows with the square of the text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

struct llama_vocab;

namespace refold {

class SpecialTokens {
public:
    explicit SpecialTokens(const llama_vocab* vocab);

    // The ends of parts of at least `least` bytes, the last one the text's. The parts' tokens, one after the
    // other, are those of the whole text: a cut follows a special token that no other one overlaps and that
    // does not take white space behind it.
    std::vector<size_t> cuts(std::string_view text, size_t least) const;

    // `at`, or the beginning of a special token that is both before and behind it.
    size_t outside(std::string_view text, size_t at) const;

private:
    // Bytes of the longest one that `text` has at `at`; 0 without any.
    size_t longest_at(std::string_view text, size_t at) const;
    bool alone(std::string_view text, size_t begin, size_t end) const;

    std::unordered_map<std::string_view, bool> tokens_;  // texts of `vocab`; takes white space behind it
    std::vector<size_t> lengths_;                        // of the texts, the longest first
    std::vector<bool> first_bytes_ = std::vector<bool>(256);
};

}  // namespace refold
