#include "generation/prompt_lookup.h"

#include <algorithm>
#include <utility>

namespace refold {
namespace {

constexpr size_t kLeast = 2;
constexpr int kMostPlaces = 64;  // that are compared: the latest ones

// The two tokens before `end`.
uint64_t pair_before(std::span<const int32_t> tokens, size_t end) {
    return uint64_t{static_cast<uint32_t>(tokens[end - 2])} << 32 | static_cast<uint32_t>(tokens[end - 1]);
}

// How many tokens before `end` are the last ones, up to `most`.
size_t agreeing(std::span<const int32_t> tokens, size_t end, size_t most) {
    size_t n = 0;
    while (n < std::min(most, end) && tokens[end - 1 - n] == tokens[tokens.size() - 1 - n]) ++n;
    return n;
}

}  // namespace

std::span<const int32_t> PromptLookup::next(std::span<const int32_t> tokens, int64_t most) {
    const auto limit = static_cast<size_t>(std::max<int64_t>(most, 0)), enough = 2 * limit;
    // All places but the end itself, which is what is looked for.
    for (size_t end = std::max(earlier_.size(), kLeast); end < tokens.size(); ++end) {
        size_t& latest = latest_[pair_before(tokens, end)];
        earlier_.resize(end);
        earlier_.push_back(std::exchange(latest, end));
    }
    if (tokens.size() <= kLeast) return {};
    const auto found = latest_.find(pair_before(tokens, tokens.size()));
    if (found == latest_.end()) return {};
    size_t best = 0, longest = 0, end = found->second;
    for (int i = 0; i < kMostPlaces && end != 0 && longest < enough; ++i, end = earlier_[end]) {
        const size_t length = agreeing(tokens, end, enough);
        if (length > longest) {
            best = end;
            longest = length;
        }
    }
    const auto rest = tokens.subspan(best);
    return rest.first(std::min(rest.size(), longest / 2));
}

}  // namespace refold
