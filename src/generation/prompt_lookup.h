// Drafts from the sequence itself: where its latest tokens stood before, what followed them there is likely
// to follow again (prompt lookup). Summaries, edits and code repeat much of their prompt.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace refold {

class PromptLookup {
public:
    // What followed the place before the end of `tokens` where most of the latest tokens stand, the latest
    // such place: half as many tokens as agree there, up to `most`, as a longer agreement is less likely
    // chance. None where the last two tokens are new together. `tokens`: those of the last call,
    // and more after them.
    std::span<const int32_t> next(std::span<const int32_t> tokens, int64_t most);

private:
    std::unordered_map<uint64_t, size_t> latest_;  // two tokens -> the index after their latest occurrence
    std::vector<size_t> earlier_;                  // by such an index, that of the occurrence before; 0: none
};

}  // namespace refold
