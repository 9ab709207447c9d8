// Byte-pair encoding over characters for SentencePiece vocabularies. Merges are ordered by their rank in a
// list, as in Hugging Face's tokenizers, or by the scores of the pieces, as in SentencePiece.
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

// Allows lookups by std::string_view in maps with std::string keys.
struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class MergeBpe {
public:
    struct Options {
        std::optional<int32_t> unknown;  // id for characters that are no token; without it they are dropped
        bool byte_fallback = false;      // encode such characters as "<0x00>" to "<0xFF>" where possible
        bool fuse_unknown = false;       // a run of unknown characters is one token
        bool ignore_merges = false;      // a text that is a token is not merged from characters
    };
    // `merges`: "left right", best first. Throws Error(input) for a merge whose parts are not tokens.
    static MergeBpe by_rank(TokenIds ids, std::span<const std::string> merges, const Options& options);
    // `scores` by id; the pair with the highest score is merged first. Produces only tokens in `ids`.
    static MergeBpe by_score(TokenIds ids, std::vector<float> scores, const Options& options);

    void encode(std::string_view text, std::vector<int32_t>& out) const;

private:
    static constexpr int32_t kNone = -1;
    struct Symbol {
        int prev, next;
        size_t begin, size;  // byte range of the text; size 0: merged into its left neighbor
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
    std::unordered_map<uint64_t, Rule> ranks_;  // by the two ids
    std::vector<float> scores_;                 // empty when merging by rank
};

}  // namespace refold
