#include "vocab/merge_bpe.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "core/error.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

MergeBpe::MergeBpe(TokenIds ids, const Options& options)
    : options_(options), ids_(std::move(ids)), byte_ids_(256, kNone) {
    for (unsigned byte = 0; byte < 256; ++byte) {
        const auto it = ids_.find(fmt::format("<0x{:02X}>", byte));
        if (it != ids_.end()) byte_ids_[byte] = it->second;
    }
}

MergeBpe MergeBpe::by_rank(TokenIds ids, std::span<const std::string> merges, const Options& options) {
    MergeBpe bpe(std::move(ids), options);
    const auto id_of = [&](const std::string& token, const std::string& merge) {
        const auto it = bpe.ids_.find(token);
        if (it == bpe.ids_.end()) {
            fail(ErrorCode::input, "tokenizer", "merge '{}': '{}' is no token - the file is damaged", merge,
                 token);
        }
        return it->second;
    };
    double rank = 0;
    for (const std::string& merge : merges) {
        const size_t space = merge.find(' ', 1);
        if (space == std::string::npos) {
            fail(ErrorCode::input, "tokenizer", "merge '{}': expected two tokens with a space between",
                 merge);
        }
        const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
        const uint64_t key = pair_key(id_of(left, merge), id_of(right, merge));
        bpe.ranks_.insert_or_assign(key, Rule{rank++, id_of(left + right, merge)});
    }
    return bpe;
}

MergeBpe MergeBpe::by_score(TokenIds ids, std::vector<float> scores, const Options& options) {
    MergeBpe bpe(std::move(ids), options);
    bpe.scores_ = std::move(scores);
    // Byte tokens come only from byte fallback, never from a text that spells them.
    for (const int32_t byte : bpe.byte_ids_) {
        if (byte != kNone) std::erase_if(bpe.ids_, [&](const auto& entry) { return entry.second == byte; });
    }
    return bpe;
}

std::vector<MergeBpe::Symbol> MergeBpe::characters(std::string_view text) const {
    std::vector<Symbol> symbols;
    std::optional<Symbol> unknown;
    const auto push = [&](size_t begin, size_t size, int32_t id) {
        symbols.push_back({0, 0, begin, size, id});
    };
    for (size_t at = 0; at < text.size();) {
        const size_t size = code_point_size(text, at);
        const auto it = ids_.find(text.substr(at, size));
        if (it != ids_.end() || !scores_.empty()) {
            if (unknown) symbols.push_back(*std::exchange(unknown, std::nullopt));
            push(at, size, it != ids_.end() ? it->second : kNone);
        } else if (options_.byte_fallback &&
                   std::all_of(text.begin() + at, text.begin() + at + size,
                               [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] != kNone; })) {
            // Like Hugging Face's, this emits a pending unknown token after these bytes.
            for (size_t i = at; i < at + size; ++i)
                push(i, 1, byte_ids_[static_cast<unsigned char>(text[i])]);
        } else if (options_.unknown) {
            if (unknown && options_.fuse_unknown) {
                unknown->size += size;
            } else {
                if (unknown) symbols.push_back(*unknown);
                unknown = Symbol{0, 0, at, size, *options_.unknown};
            }
        }
        at += size;
    }
    if (unknown) symbols.push_back(*unknown);
    const int count = static_cast<int>(symbols.size());
    for (int i = 0; i < count; ++i) {
        symbols[static_cast<size_t>(i)].prev = i - 1;
        symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
    }
    return symbols;
}

std::optional<MergeBpe::Rule> MergeBpe::rule(std::string_view text, const Symbol& left,
                                             const Symbol& right) const {
    if (scores_.empty()) {
        const auto it = ranks_.find(pair_key(left.id, right.id));
        if (it == ranks_.end()) return std::nullopt;
        return it->second;
    }
    const auto it = ids_.find(text.substr(left.begin, left.size + right.size));
    if (it == ids_.end()) return std::nullopt;
    return Rule{-double{scores_[static_cast<size_t>(it->second)]}, it->second};
}

void MergeBpe::merge(std::string_view text, std::vector<Symbol>& symbols) const {
    const auto later = [](const Candidate& a, const Candidate& b) {
        return a.cost != b.cost ? a.cost > b.cost : a.left > b.left;
    };
    std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> queue(later);
    const auto at = [&](int i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
    const auto consider = [&](int left) {
        if (left < 0 || at(left).next < 0) return;
        const Symbol& right = at(at(left).next);
        if (const auto found = rule(text, at(left), right)) {
            queue.push({found->cost, left, at(left).size + right.size, found->id});
        }
    };
    for (int i = 0; i < static_cast<int>(symbols.size()); ++i) consider(i);
    while (!queue.empty()) {
        const Candidate best = queue.top();
        queue.pop();
        Symbol& left = at(best.left);
        if (left.size == 0 || left.next < 0) continue;
        Symbol& right = at(left.next);
        if (left.size + right.size != best.size) continue;
        const auto now = rule(text, left, right);
        if (!now || now->id != best.id) continue;
        left.size += right.size;
        left.id = best.id;
        left.next = right.next;
        right.size = 0;
        if (left.next >= 0) at(left.next).prev = best.left;
        consider(left.prev);
        consider(best.left);
    }
}

void MergeBpe::emit(std::string_view text, const Symbol& symbol, bool after_unknown,
                    std::vector<int32_t>& out) const {
    if (symbol.id != kNone) {
        out.push_back(symbol.id);
        return;
    }
    const std::string_view bytes = text.substr(symbol.begin, symbol.size);
    const auto id = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
    if (options_.byte_fallback &&
        std::all_of(bytes.begin(), bytes.end(), [&](char c) { return id(c) != kNone; })) {
        for (const char c : bytes) out.push_back(id(c));
    } else if (options_.unknown && !(options_.fuse_unknown && after_unknown)) {
        out.push_back(*options_.unknown);
    }
}

void MergeBpe::encode(std::string_view text, std::vector<int32_t>& out) const {
    if (options_.ignore_merges) {
        if (const auto it = ids_.find(text); it != ids_.end()) {
            out.push_back(it->second);
            return;
        }
    }
    std::vector<Symbol> symbols = characters(text);
    merge(text, symbols);
    bool after_unknown = false;
    for (const Symbol& symbol : symbols) {
        if (symbol.size == 0) continue;
        emit(text, symbol, after_unknown, out);
        after_unknown = symbol.id == kNone;
    }
}

}  // namespace refold
