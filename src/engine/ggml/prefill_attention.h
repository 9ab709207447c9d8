// Attention of many tokens: tiles of the cache are packed once for hundreds of query rows. Part of Attention;
// attention.h defines the operations and their tensors.
#pragma once

#include <memory>
#include <new>
#include <vector>

#include "engine/ggml/attention_kernels_tiles.h"
#include "engine/ggml/attention_step.h"
#include "engine/ggml/attention_work.h"

namespace refold {

class PrefillAttention {
public:
    explicit PrefillAttention(int threads) : workspaces_(static_cast<size_t>(threads)) {}

    // Each computes the part of `dst` that belongs to `item`.
    void attend(ggml_tensor* dst, const AttentionStep& step, const attention::ScoreRules& rules,
                const AttentionWorkItem& item, int thread);
    void probabilities(ggml_tensor* dst, const AttentionStep& step, const attention::ScoreRules& rules,
                       const AttentionWorkItem& item, int thread);
    void apply(ggml_tensor* dst, const AttentionStep& step, const AttentionWorkItem& item, int thread);

private:
    // A buffer that grows as needed and begins on a cache line.
    class AlignedFloats {
    public:
        float* resize(int64_t count) {
            if (count > count_) data_.reset(new (kLine) float[static_cast<size_t>(count_ = count)]);
            return data_.get();
        }

    private:
        static constexpr std::align_val_t kLine{64};
        struct Delete {
            void operator()(float* data) const { ::operator delete[](data, kLine); }
        };
        std::unique_ptr<float, Delete> data_;
        int64_t count_ = 0;
    };

    // Buffers of one thread.
    struct Workspace {
        AlignedFloats keys, values, queries, out, total, statistics, slopes, tile_maximum;
        std::vector<attention::RowRange> visible;
        std::vector<void*> probabilities;
    };

    // The query rows of an item, and their results over all chunks.
    struct Rows {
        attention::QueryRows of_chunk;
        attention::Softmax total;

        void clear_chunk(float maximum);
        void merge_chunk(bool out) const;
    };
    static Rows rows_of(const AttentionStep& step, const AttentionWorkItem& item, int64_t head_dim,
                        Workspace& workspace);

    std::vector<Workspace> workspaces_;
};

}  // namespace refold
