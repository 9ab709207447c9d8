#include "engine/ggml/attention_work.h"

#include "engine/ggml/attention_kernels_tiles.h"

namespace refold {

using attention::kTileRows;

namespace {

// Most query rows of an item: many rows share the packing of a tile, yet they must fit into the L2 cache.
constexpr int64_t kItemRows = 384;
// Items per thread that balance the load.
constexpr int64_t kItemsPerThread = 8;

// Tokens per item, when `tokens` tokens are taken by tiles.
int64_t tokens_per_item(const AttentionStep& step, int64_t tokens, int threads) {
    const int64_t fair =
        (tokens * step.kv_heads + kItemsPerThread * threads - 1) / (kItemsPerThread * threads);
    const int64_t group = step.group();
    const int64_t most = std::max<int64_t>(1, kItemRows / group), least = (kTileRows + group - 1) / group;
    const int64_t count = std::clamp(fair, std::min(least, most), most);
    // Rounded up to whole blocks of kTileRows query rows where one token does not fill a block.
    return group < kTileRows ? (count * group + kTileRows - 1) / kTileRows * kTileRows / group : count;
}

}  // namespace

const std::vector<AttentionWorkQueue::TokenRange>& AttentionWorkQueue::split_tokens(const AttentionStep& step,
                                                                                    int thread, int threads) {
    std::vector<TokenRange>& ranges = ranges_[static_cast<size_t>(thread)];
    ranges.clear();
    int64_t many = 0;
    for_runs(step, [&](int64_t first, int64_t last) {
        if (last - first > step.few) many += last - first;
    });
    // The most expensive items come first, so that the threads finish together: tiles before single tokens,
    // and within a run the last tokens, which see most rows.
    const int64_t count = tokens_per_item(step, many, threads);
    for_runs(step, [&](int64_t first, int64_t last) {
        if (last - first <= step.few) return;
        for (int64_t i = (last - first - 1) / count; i >= 0; --i)
            ranges.push_back({first + i * count, std::min(first + (i + 1) * count, last), false});
    });
    for_runs(step, [&](int64_t first, int64_t last) {
        if (last - first > step.few) return;
        for (int64_t token = first; token < last; ++token) ranges.push_back({token, token + 1, true});
    });
    return ranges;
}

}  // namespace refold
