#include "text/special_tokens.h"

#include <llama.h>

#include <algorithm>
#include <functional>

namespace refold {

SpecialTokens::SpecialTokens(const llama_vocab* vocab) {
    constexpr int kSpecial =
        LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        const int attributes = llama_vocab_get_attr(vocab, token);
        const std::string_view text = llama_vocab_get_text(vocab, token);
        if ((attributes & kSpecial) == 0 || text.empty()) continue;
        tokens_.emplace(text, (attributes & LLAMA_TOKEN_ATTR_RSTRIP) != 0);
        first_bytes_[static_cast<unsigned char>(text.front())] = true;
        lengths_.push_back(text.size());
    }
    std::ranges::sort(lengths_, std::greater());
    const auto [first, last] = std::ranges::unique(lengths_);
    lengths_.erase(first, last);
}

size_t SpecialTokens::longest_at(std::string_view text, size_t at) const {
    if (!first_bytes_[static_cast<unsigned char>(text[at])]) return 0;
    for (const size_t length : lengths_)
        if (length <= text.size() - at && tokens_.contains(text.substr(at, length))) return length;
    return 0;
}

bool SpecialTokens::alone(std::string_view text, size_t begin, size_t end) const {
    const size_t longest = lengths_.front();
    for (size_t at = begin < longest ? 0 : begin - longest; at < end; ++at) {
        const size_t other = at + longest_at(text, at);
        if (at < begin ? other > begin : other > end) return false;
    }
    return true;
}

size_t SpecialTokens::outside(std::string_view text, size_t at) const {
    const size_t longest = lengths_.empty() ? 0 : lengths_.front();
    for (size_t begin = at - std::min(at, longest); begin < at && at < text.size(); ++begin)
        if (begin + longest_at(text, begin) > at) return begin;
    return at;
}

std::vector<size_t> SpecialTokens::cuts(std::string_view text, size_t least) const {
    std::vector<size_t> ends;
    for (size_t begin = 0, at = 0; at < text.size();) {
        const size_t length = longest_at(text, at);
        const size_t end = at + length;
        if (length > 0 && end - begin >= least && end < text.size() && !tokens_.at(text.substr(at, length)) &&
            alone(text, at, end)) {
            ends.push_back(end);
            begin = end;
        }
        at = std::max(end, at + 1);
    }
    ends.push_back(text.size());
    return ends;
}

}  // namespace refold
