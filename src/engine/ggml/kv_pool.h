// A KV cache that several sequences share. Each has a contiguous run of its rows, those of the prefix first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/round_up.h"
#include "engine/ggml/kv_cache.h"

namespace refold {

class KvPool {
public:
    struct Sequence {
        int64_t first = 0;   // row of the cache
        int64_t rows = 0;    // reserved; 0: closed
        int64_t length = 0;  // tokens with keys and values
    };

    // `rows` for all sequences and their prefixes, of which one has at most `context` tokens. With steps by
    // loop, `model` is the block and the cache holds these rows for each loop, one loop after the other.
    KvPool(const Model& model, int64_t rows, int64_t context, ggml_type type, int32_t loops = 1,
           const DeviceRun* device = nullptr);

    // Takes the first gap of the cache that is large enough, on a device one where sequences of similar
    // lengths lie at equal distances (group_sequences()); defragments the cache if there is room only in
    // several gaps. Returns nothing if there is no room.
    std::optional<int32_t> open(int64_t tokens);
    void close(int32_t sequence);
    // Reserves rows for that many tokens, where the sequence lies. Returns false when others are in the way.
    bool resize(int32_t sequence, int64_t tokens);
    // Throws Error(internal) for a sequence that is not open.
    Sequence& at(int32_t sequence);
    const Sequence& at(int32_t sequence) const;
    // Copies the first `tokens` rows of `from` to `to`, which is empty.
    void copy(int32_t from, int32_t to, int64_t tokens);
    uint64_t saved_bytes(int64_t tokens) const;
    // Gives `write` the first `tokens` rows of a sequence, tensor by tensor, saved_bytes() in all.
    void save(int32_t sequence, int64_t tokens,
              const std::function<void(std::span<const std::byte>)>& write) const;
    // Gives rows that were saved to a sequence, which is empty.
    void load(int32_t sequence, int64_t tokens, std::span<const std::byte> saved);
    // Copies the token's row of `loop` to all later loops.
    void share(int32_t sequence, int64_t position, int32_t loop);

    int64_t rows() const { return rows_; }
    int64_t used() const { return used_; }  // reserved
    const KvCache& cache() const { return cache_; }
    // Rows of the tensors per loop: more than rows(), which the prefix at the beginning does not count to.
    int64_t cached() const { return prefix_ + rows_; }
    // Of all loops; on a device a multiple of kDeviceUnit.
    int64_t all_cached() const { return round_up(loops_ * cached(), unit_); }
    // Rows that the attention of devices reads at once: of other numbers, it runs slower kernels.
    static constexpr int64_t kDeviceUnit = 256;

private:
    // Whose multiples sequences of so many rows begin at: the longest one's, or a half, a quarter, ... of it.
    int64_t alignment(int64_t rows) const;
    int64_t aligned(int64_t row, int64_t alignment) const {
        return prefix_ + round_up(row - prefix_, alignment);
    }
    // First row, a multiple of `alignment` after the prefix, of the first gap of at least `rows`, which lies
    // before order_[index]; -1: none.
    int64_t gap(int64_t rows, int64_t alignment, size_t& index) const;
    // Moves the sequences to the front of the cache, so that the free rows form one gap.
    void defragment();
    // In every loop; the ranges may overlap.
    void move_rows(int64_t from, int64_t to, int64_t count);
    // Rows of the tensors.
    void move_cached(int64_t from, int64_t to, int64_t count);
    // Calls function(tensor, offset, bytes) for each piece of the sequence's first `tokens` rows that is
    // contiguous.
    template <class Function>
    void for_each_piece(int32_t sequence, int64_t tokens, Function&& function) const;
    static void move_on_device(ggml_tensor* tensor, int64_t from, int64_t to, int64_t count);

    int64_t prefix_, rows_, longest_, loops_, unit_, used_ = 0;
    KvCache cache_;                      // the prefix, which nothing overwrites, then the sequences
    std::vector<ggml_tensor*> tensors_;  // of the cache, each once
    std::vector<Sequence> sequences_;    // by number
    std::vector<int32_t> order_;         // the open sequences, by first row
};

}  // namespace refold
