// Attention of many tokens: query rows by the hundred against tiles of the cache that are packed once for all
// of them. Used by Attention (attention.h, which has the meaning of the operations and their tensors).
#pragma once

#include <memory>
#include <new>
#include <vector>

#include "engine/ggml/attention_kernels_tiles.h"
#include "engine/ggml/attention_step.h"
#include "engine/ggml/attention_units.h"

namespace refold {

class PrefillAttention {
public:
    explicit PrefillAttention(int threads) : workspaces_(static_cast<size_t>(threads)) {}

    // A unit's part of `dst`.
    void attend(ggml_tensor* dst, const AttentionStep& step, const attention::ScoreRules& rules,
                const AttentionUnit& unit, int thread);
    void probabilities(ggml_tensor* dst, const AttentionStep& step, const attention::ScoreRules& rules,
                       const AttentionUnit& unit, int thread);
    void apply(ggml_tensor* dst, const AttentionStep& step, const AttentionUnit& unit, int thread);

private:
    // Floats that grow as needed and begin on a cache line, as vectors should.
    class Floats {
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

    // One thread's.
    struct Workspace {
        Floats keys, values, queries, out, maximum, sum, slopes, tile_maximum;
        std::vector<attention::RowRange> visible;
        std::vector<void*> probabilities;
    };

    static attention::QueryRows rows_of(const AttentionStep& step, const AttentionUnit& unit,
                                        int64_t head_dim, Workspace& workspace);

    std::vector<Workspace> workspaces_;
};

}  // namespace refold
