// Inner loops of attention for many query rows: products of tiles in float32, with sums in registers.
#pragma once

#include "engine/ggml/attention_kernels.h"

namespace refold::attention {

constexpr int64_t kTileRows = 6;    // query rows whose sums are kept in registers together
constexpr int64_t kTileKeys = 128;  // cached rows of a tile: a multiple of kPanel
constexpr int64_t kPanel = 64;      // keys that lie side by side in a panel

// Query rows over one key/value head, in blocks of kTileRows (the last one filled up with rows that see
// nothing).
struct QueryRows {
    int64_t count = 0;                  // a multiple of kTileRows
    int64_t head_dim = 0, width = 0;    // width: head_dim in whole vectors
    const float* queries = nullptr;     // [block][head_dim][kTileRows], times ScoreRules::factor
    const RowRange* visible = nullptr;  // [count]
    const float* slopes = nullptr;      // ALiBi's [count], times log2(e); null without
    float cap = 0;                      // ScoreRules::cap
    float* maximum = nullptr;           // [count], of the scores so far; -infinity at first
    float* sum = nullptr;               // [count], of the weights 2^(score - maximum)
    float* out = nullptr;               // [count][width], weighted values
};

// Cached rows [first, first + count), packed.
struct Tile {
    int64_t first, count;
    const float* keys;    // [panel][head_dim][kPanel]
    const float* values;  // [kTileKeys][width]
};

// Up to kTileKeys rows as Tile has them; behind rows.count zeros.
void pack_keys(const CachedRows& rows, float* panels);
void pack_values(const CachedRows& rows, int64_t width, float* values);

// Scores, weights and weighted values of a tile, added to what the tiles before gave.
void attend_tile(const QueryRows& rows, const Tile& tile);

// Weights of a tile into probabilities[row] + cached row (F16 or F32), relative to the largest score up to
// this tile, which goes to tile_maximum[row].
void score_tile(const QueryRows& rows, const Tile& tile, void* const* probabilities, bool half,
                float* tile_maximum);

// Adds the values of a tile, weighted by probabilities[row] + cached row (F16 or F32).
void apply_tile(const QueryRows& rows, const Tile& tile, void* const* probabilities, bool half);

}  // namespace refold::attention
