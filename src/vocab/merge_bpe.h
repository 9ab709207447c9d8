// Byte-pair merging of characters as SentencePiece vocabularies need it: by the ranks of a merge list (what
// Hugging Face's tokenizers do) or by the scores of the pieces (what SentencePiece does).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace refold {

// Lets maps with std::string keys be asked for a std::string_view.
struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class MergeBpe {
public:
    struct Options {
        std::optional<int32_t> unknown;  // for characters that are no token; without it they vanish
        bool byte_fallback = false;      // first: their bytes as the tokens "<0x00>" to "<0xFF>"
        bool fuse_unknown = false;       // a run of unknown characters is one token
        bool ignore_merges = false;      // a text that is a token is that token
    };
    // `merges`: "left right", best first. Throws Error(input) for one that names no tokens.
    static MergeBpe by_rank(TokenIds ids, std::span<const std::string> merges, const Options& options);
    // `scores` by id: the highest is merged first. Only the tokens in `ids` are made.
    static MergeBpe by_score(TokenIds ids, std::vector<float> scores, const Options& options);

    void encode(std::string_view text, std::vector<int32_t>& out) const;

private:
    static constexpr int32_t kNone = -1;
    struct Symbol {
        int prev, next;
        size_t begin, size;  // bytes of the text; size 0: merged into its left neighbour
        int32_t id;
    };
    struct Candidate {
        double cost;
        int left;
        size_t size;
        int32_t id;
    };
    struct Rule {
        double cost;
        int32_t id;
    };

    MergeBpe(TokenIds ids, const Options& options);
    std::vector<Symbol> characters(std::string_view text) const;
    void merge(std::string_view text, std::vector<Symbol>& symbols) const;
    std::optional<Rule> rule(std::string_view text, const Symbol& left, const Symbol& right) const;
    void emit(std::string_view text, const Symbol& symbol, bool after_unknown,
              std::vector<int32_t>& out) const;

    Options options_;
    TokenIds ids_;
    std::vector<int32_t> byte_ids_;
    std::unordered_map<uint64_t, Rule> ranks_;  // by both ids
    std::vector<float> scores_;                 // empty: by rank
};

}  // namespace refold
