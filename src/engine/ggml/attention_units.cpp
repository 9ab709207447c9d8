#include "engine/ggml/attention_units.h"

#include "engine/ggml/attention_kernels_tiles.h"

namespace refold {

using attention::kTileRows;

namespace {

// Query rows of a unit: many share the packing of a tile, but they stay in the CPU's second cache.
constexpr int64_t kUnitRows = 384;
// Units per thread that balance their work.
constexpr int64_t kUnitsPerThread = 8;

// Of a unit, when `tokens` are taken by tiles.
int64_t tokens_of_unit(const AttentionStep& step, int64_t tokens, int threads) {
    const int64_t fair =
        (tokens * step.kv_heads + kUnitsPerThread * threads - 1) / (kUnitsPerThread * threads);
    const int64_t group = step.group();
    const int64_t most = std::max<int64_t>(1, kUnitRows / group), least = (kTileRows + group - 1) / group;
    // Whole blocks of rows, where a token does not fill one.
    const int64_t part = std::clamp(fair, std::min(least, most), most);
    return group < kTileRows ? (part * group + kTileRows - 1) / kTileRows * kTileRows / group : part;
}

}  // namespace

const std::vector<AttentionUnits::Block>& AttentionUnits::divide(const AttentionStep& step, int thread,
                                                                 int threads) {
    std::vector<Block>& blocks = blocks_[static_cast<size_t>(thread)];
    blocks.clear();
    int64_t many = 0;
    for_runs(step, [&](int64_t first, int64_t last) {
        if (last - first > kFewTokens) many += last - first;
    });
    // Long units come first, and of a run the last tokens, which see most rows, so that the threads end at
    // the same time.
    const int64_t part = tokens_of_unit(step, many, threads);
    for_runs(step, [&](int64_t first, int64_t last) {
        if (last - first <= kFewTokens) return;
        for (int64_t i = (last - first - 1) / part; i >= 0; --i)
            blocks.push_back({first + i * part, std::min(first + (i + 1) * part, last), false});
    });
    for_runs(step, [&](int64_t first, int64_t last) {
        if (last - first > kFewTokens) return;
        for (int64_t token = first; token < last; ++token) blocks.push_back({token, token + 1, true});
    });
    return blocks;
}

}  // namespace refold
