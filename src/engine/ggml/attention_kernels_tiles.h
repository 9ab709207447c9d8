// Attention kernels for many query rows (prefill): online softmax over tiles of packed keys and values.
#pragma once

#include "engine/ggml/attention_kernels.h"

namespace refold::attention {

constexpr int64_t kTileRows = 6;  // query rows of a block: their accumulators fit into the registers
constexpr int64_t kPanel = 64;    // keys of a panel, side by side; a tile is whole panels

// Query rows of one KV head, in blocks of kTileRows; the last block is filled up with rows that see nothing.
struct QueryRows {
    int64_t count = 0;                  // a multiple of kTileRows
    int64_t head_dim = 0, width = 0;    // width: whole_vectors(head_dim)
    const float* queries = nullptr;     // [block][head_dim][kTileRows], times ScoreRules::factor
    const RowRange* visible = nullptr;  // [count]
    const float* slopes = nullptr;      // ALiBi [count], times log2(e); null: off
    float cap = 0;                      // ScoreRules::cap
    Softmax chunk = {};                 // over the tiles of the chunk so far; stride: width
};

// Cached rows [first, first + count), packed.
struct Tile {
    int64_t first, count;
    const float* keys;    // [panel][head_dim][kPanel]
    const float* values;  // [kTileKeys][width]
};

// Pack up to kTileKeys rows as in Tile. Keys are filled up with zeros to a whole panel.
void pack_keys(const CachedRows& rows, float* panels);
void pack_values(const CachedRows& rows, int64_t width, float* values);

// One step of online softmax: updates the chunk's maximum, sum and out of the rows with its next tile.
void attend_tile(const QueryRows& rows, const Tile& tile);

// Writes the weights of a tile to probabilities[row] + cached row (F16 or F32), relative to the row's largest
// score in the chunk up to this tile, which goes to tile_maximum[row].
void score_tile(const QueryRows& rows, const Tile& tile, void* const* probabilities, bool half,
                float* tile_maximum);

// Adds the values of a tile, weighted by probabilities[row] + cached row (F16 or F32), to chunk.out.
void apply_tile(const QueryRows& rows, const Tile& tile, void* const* probabilities, bool half);

}  // namespace refold::attention
