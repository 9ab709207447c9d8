// Many sequences in one KV cache: each has a piece of its rows, those of the prefix first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/ggml/kv_cache.h"

namespace refold {

class KvPool {
public:
    struct Sequence {
        int64_t first = 0;   // row of the cache
        int64_t rows = 0;    // reserved; 0: closed
        int64_t length = 0;  // tokens whose keys and values are there
    };

    // `rows` for all sequences and their prefixes. A looped model's loop with as many stages has all of it
    // for each stage, one after the other.
    KvPool(const Model& model, int64_t rows, ggml_type type, int32_t stages = 1);

    // Takes the first piece of the cache that is large enough, and moves the others together when there is
    // only room in pieces. Nothing when there is no room.
    std::optional<int32_t> open(int64_t tokens);
    void close(int32_t sequence);
    // Throws Error(internal) for one that is not open.
    Sequence& at(int32_t sequence);
    // The first `tokens` rows of `from` become those of `to`, which has none.
    void copy(int32_t from, int32_t to, int64_t tokens);
    // The token's row of `stage` becomes that of all later stages.
    void share(int32_t sequence, int64_t position, int32_t stage);

    int64_t rows() const { return rows_; }
    int64_t used() const { return used_; }  // reserved
    const KvCache& cache() const { return cache_; }
    // Rows of a stage: there are more than rows().
    int64_t cached() const { return prefix_ + rows_; }
    // Of all stages.
    int64_t all_cached() const { return stages_ * cached(); }

private:
    int64_t hole(int64_t rows, size_t& place) const;
    void move_together();
    // Of every stage; may overlap.
    void move_rows(int64_t from, int64_t to, int64_t count);
    // Rows of the tensors.
    void move_cached(int64_t from, int64_t to, int64_t count);

    int64_t prefix_, rows_, stages_, used_ = 0;
    KvCache cache_;                      // the prefix, which nothing overwrites, then the sequences
    std::vector<ggml_tensor*> tensors_;  // of the cache, each once
    std::vector<Sequence> sequences_;    // by number
    std::vector<int32_t> order_;         // the open ones as they lie
};

}  // namespace refold
