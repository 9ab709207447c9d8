// Drafts from the sequence itself: where its latest tokens stood before, what followed them there is likely
// to follow again (prompt lookup). Summaries, edits and code repeat much of their prompt.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

namespace refold {

class PromptLookup {
public:
    // Up to `most` tokens that followed the latest occurrence of the last three tokens before the end of
    // `tokens`; none where these are new. `tokens`: those of the last call, and more after them.
    std::span<const int32_t> next(std::span<const int32_t> tokens, int64_t most);

private:
    std::unordered_map<uint64_t, size_t> after_;  // three tokens -> the index after their latest occurrence
    size_t seen_ = 0;                             // tokens whose occurrences are in after_
};

}  // namespace refold
