// Sequences of a step whose attention a device computes in one operation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

// Rows of the cache: the first one of a token's sequence, and the token's own.
struct CacheRow {
    int32_t first, own;
    bool operator==(const CacheRow&) const = default;
};

// One operation reads sequences that begin at equal distances, some of which may belong to nobody. Or it
// reads one stretch of rows, in which several sequences lie, for the tokens of all of them.
struct SequenceGroup {
    int64_t first = 0;      // row of the cache where the first sequence begins
    int64_t distance = 0;   // rows to where the next one begins
    int64_t sequences = 1;  // at these distances
    int64_t tokens = 0;     // of each
    int64_t rows = 0;       // that are read for each
    bool operator==(const SequenceGroup&) const = default;

    int64_t queries() const { return sequences * tokens; }
    int64_t first_of(int64_t sequence) const { return first + sequence * distance; }
    // The rows that this query of `token` sees, counted from where the group reads. Padding queries have any
    // token and see the first row: a softmax over no rows would be NaN.
    CacheRow seen(int64_t query, CacheRow token) const;
};

struct GroupedSequences {
    // What a graph is built for.
    struct Shape {
        std::vector<SequenceGroup> groups;
        bool in_order = true;  // the queries of all groups are the tokens
        bool operator==(const Shape&) const = default;
    } shape;
    std::vector<int32_t> tokens;   // by query, group by group: the token that asks
    std::vector<int32_t> queries;  // by token: its query
};

// The number that a count is rounded up to where shapes recur.
int64_t recurring_count(int64_t count);

// What attention costs, in rows that are read for one token.
struct AttentionCosts {
    double operation = 0;      // of an operation
    double further_token = 1;  // of a row for each token of a sequence after the first
};

// The cache that attention reads.
struct GroupedCache {
    int64_t rows = 0;
    int64_t unit = 1;  // operations read a multiple of so many rows, where the cache has them
    // Last rows of sequences that later steps may read. Steps have queries for them as well and round what
    // they read, so that their shapes recur. Empty: steps are as small as they can be.
    std::vector<CacheRow> others = {};
};

// `tokens`: of a step. Tokens of one sequence at the same row share a query.
GroupedSequences group_sequences(std::span<const CacheRow> tokens, const GroupedCache& cache,
                                 const AttentionCosts& costs);

}  // namespace refold
