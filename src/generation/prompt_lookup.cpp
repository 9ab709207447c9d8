#include "generation/prompt_lookup.h"

#include <algorithm>

namespace refold {
namespace {

constexpr size_t kMatched = 3;

// Three tokens mixed into one number. Others with the same number would be bad drafts, which are refused.
uint64_t key_of(std::span<const int32_t> tokens) {
    uint64_t key = 0;
    for (const int32_t token : tokens) key = (key ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15U;
    return key;
}

}  // namespace

std::span<const int32_t> PromptLookup::next(std::span<const int32_t> tokens, int64_t most) {
    // All but the last three tokens themselves: these are what is looked for.
    for (size_t end = std::max(seen_, kMatched); end < tokens.size(); ++end)
        after_[key_of(tokens.subspan(end - kMatched, kMatched))] = end;
    seen_ = tokens.size();
    if (tokens.size() <= kMatched) return {};
    const auto found = after_.find(key_of(tokens.last(kMatched)));
    if (found == after_.end()) return {};
    const auto rest = tokens.subspan(found->second);
    return rest.first(std::min(rest.size(), static_cast<size_t>(std::max<int64_t>(most, 0))));
}

}  // namespace refold
