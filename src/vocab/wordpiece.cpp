#include "vocab/wordpiece.h"

#include <algorithm>

#include "vocab/unicode.h"

namespace refold {

WordPiece::WordPiece(TokenIds ids, Options options) : ids_(std::move(ids)), options_(std::move(options)) {
    for (const auto& [token, id] : ids_) longest_ = std::max(longest_, token.size());
}

void WordPiece::encode(std::string_view text, std::vector<int32_t>& out) const {
    const std::u32string points = to_code_points(text);
    const std::u32string_view all = points;
    size_t start = 0;
    const auto finish = [&](size_t end) {
        if (start < end) encode_word(all.substr(start, end - start), out);
    };
    for (size_t i = 0; i < all.size(); ++i) {
        const bool space = is_white_space(all[i]);
        if (!space && !is_bert_punctuation(all[i])) continue;
        finish(i);
        start = i + 1;
        if (!space) encode_word(all.substr(i, 1), out);
    }
    finish(all.size());
}

void WordPiece::encode_word(std::u32string_view word, std::vector<int32_t>& out) const {
    if (word.size() > options_.longest_word) {
        out.push_back(options_.unknown);
        return;
    }
    std::string text;
    std::vector<size_t> ends;  // byte offset after every character
    for (const char32_t c : word) {
        append_utf8(text, c);
        ends.push_back(text.size());
    }
    std::vector<int32_t> pieces;
    for (size_t from = 0; from < ends.size();) {
        const size_t begin = from == 0 ? 0 : ends[from - 1];
        size_t to = std::min(ends.size(), from + longest_);
        for (; to > from; --to) {
            const std::string piece =
                (from == 0 ? "" : options_.prefix) + text.substr(begin, ends[to - 1] - begin);
            if (const auto it = ids_.find(piece); it != ids_.end()) {
                pieces.push_back(it->second);
                break;
            }
        }
        if (to == from) {
            out.push_back(options_.unknown);
            return;
        }
        from = to;
    }
    out.insert(out.end(), pieces.begin(), pieces.end());
}

}  // namespace refold
