// The weights that differ from loop to loop, for steps whose rows are at different loops: each row takes the
// LoRA, norm or bias of its own loop. The loop of each row is data of the step, so one graph serves every
// mixture. Neighboring rows of one loop are multiplied together.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/looped_block.h"
#include "engine/ggml/panels.h"
#include "engine/ggml/spin_barrier.h"

namespace refold {

class LoopWeights {
public:
    // `f32`: as EngineOptions::f32. Quantized LoRA is kept in BF16, or in Q8_0 where row_panels::supports()
    // it.
    LoopWeights(const LoopedBlock& model, bool f32, int threads);
    LoopWeights(const LoopWeights&) = delete;
    LoopWeights& operator=(const LoopWeights&) = delete;

    // In what follows, `loops` I32 [tokens] is the loop of each row (token) of x.

    // Slots with one input, whose products follow each other in y from element `first` of a row on.
    struct Products {
        size_t layer;
        std::span<const Slot> slots;
        int64_t first;
    };
    // Adds B (A x) and the bias of every row's loop to y = W x, in place, as one node. x [in, tokens],
    // y [out, tokens]. Returns y itself where the loops do not differ. y may be x if it belongs to one slot.
    ggml_tensor* add_terms(ggml_context* context, const Products& products, ggml_tensor* y, ggml_tensor* x,
                           ggml_tensor* loops);
    // Whether the vector of this slot differs between loops.
    bool differs(size_t layer, Slot slot) const { return vectors_.contains({layer, slot}); }
    // x times, or plus, the vector [n] of every row's loop, in place. x [n, tokens] or [n, heads, tokens].
    ggml_tensor* scale(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x, ggml_tensor* loops);
    ggml_tensor* add(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x, ggml_tensor* loops);

    uint64_t bytes() const { return bytes_; }

private:
    // B (A x) of one slot and loop: a [rank, in], b [out, rank]. Rank 0: none.
    struct LowRankPanels {
        Panels a, b;
    };
    using Vectors = std::vector<std::vector<float>>;  // by loop
    // Terms and biases of one slot by loop; either may be empty.
    struct Matrix {
        std::vector<LowRankPanels> terms;
        Vectors biases;

        const LowRankPanels* term(size_t loop) const {
            return terms.empty() || terms[loop].a.rows() == 0 ? nullptr : &terms[loop];
        }
        void add_bias(size_t loop, float* y) const;
    };
    // Matrices that one node multiplies with one input.
    struct Group {
        LoopWeights* weights;
        struct Member {
            const Matrix* matrix;
            int64_t first;      // element of a row of y where its product begins
            int64_t ax_column;  // element of a row of A x where its own begins
        };
        std::vector<Member> members;
        int64_t width = 0;  // of a row of A x, all members together
        bool has_biases = false;
    };

    struct Rows;
    static void compute_terms(ggml_tensor* dst, int thread, int threads, void* group);
    static void add_block(const Group& group, const Rows& rows, int64_t first, int64_t count);
    static void add_few_rows(const Group& group, const Rows& rows, int thread, int threads);

    ModelConfig config_;  // of the block
    int threads_;
    std::map<BlockSlot, Matrix> matrices_;
    std::map<BlockSlot, Vectors> vectors_;
    std::map<std::tuple<size_t, std::vector<Slot>, int64_t>, Group> groups_;  // by layer, slots, first
    uint64_t bytes_ = 0;
    std::vector<float> ax_;  // A x of few rows [row][Group::width], shared by all threads
    SpinBarrier barrier_;
};

}  // namespace refold
