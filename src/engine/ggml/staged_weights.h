// Where the loops of a looped model differ, for steps whose rows stand at different loops: each row is
// multiplied with its own loop's LoRA, norm or bias. Neighbouring rows of one loop are taken together; which
// loops the rows stand at is data, not part of the graph.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/meeting.h"
#include "engine/ggml/panels.h"
#include "engine/ggml/stages.h"

namespace refold {

class StagedWeights {
public:
    // `f32`: as EngineOptions::f32. Quantised LoRA is kept as bfloat16, but Q8_0 where the CPU
    // multiplies it.
    StagedWeights(const StagedModel& model, bool f32, int threads);
    StagedWeights(const StagedWeights&) = delete;
    StagedWeights& operator=(const StagedWeights&) = delete;

    // `stages` I32 [tokens]: the loop of each row of x [in, tokens].

    // Slots of one input whose products lie below each other in y, from row `first` on.
    struct Products {
        size_t position;
        std::span<const Slot> slots;
        int64_t first;
    };
    // What the loops add to products y = W x, in place: one node, B (A x) of every row's own loop and its
    // bias. y itself where the loops do not differ. y may be x where it has the rows of one slot.
    ggml_tensor* add_terms(ggml_context* context, const Products& products, ggml_tensor* y, ggml_tensor* x,
                           ggml_tensor* stages);
    bool differs(size_t position, Slot slot) const { return vectors_.contains({position, slot}); }
    // x [n, tokens] or [n, heads, tokens] times, or plus, each row's own vector [n], in place.
    ggml_tensor* scale(ggml_context* context, size_t position, Slot slot, ggml_tensor* x,
                       ggml_tensor* stages);
    ggml_tensor* add(ggml_context* context, size_t position, Slot slot, ggml_tensor* x, ggml_tensor* stages);

    uint64_t bytes() const { return bytes_; }

private:
    // One loop's LoRA of one slot; nothing where the rank is 0.
    struct Term {
        Panels a, b;
    };
    // A matrix's terms and biases by loop; one or the other may be empty.
    using Vectors = std::vector<std::vector<float>>;  // by loop
    struct Matrix {
        std::vector<Term> terms;
        Vectors biases;

        const Term* term(size_t loop) const {
            return terms.empty() || terms[loop].a.rows() == 0 ? nullptr : &terms[loop];
        }
        void add_bias(size_t loop, float* y) const;
    };
    // Matrices that are multiplied with one input.
    struct Group {
        StagedWeights* weights;
        struct Part {
            const Matrix* matrix;
            int64_t first;    // row of y
            int64_t between;  // where its A x begin in a row's
        };
        std::vector<Part> parts;
        int64_t width = 0;  // of a row's A x together
        bool has_biases = false;
    };

    struct Rows;
    static void compute_terms(ggml_tensor* dst, int thread, int threads, void* group);
    static void add_block(const Group& group, const Rows& rows, int64_t first, int64_t count);
    static void add_few(const Group& group, const Rows& rows, int thread, int threads);

    ModelConfig config_;  // of the block
    int threads_;
    std::map<BlockPlace, Matrix> matrices_;
    std::map<BlockPlace, Vectors> vectors_;
    std::map<std::tuple<size_t, std::vector<Slot>, int64_t>, Group> groups_;  // of nodes
    uint64_t bytes_ = 0;
    std::vector<float> between_;  // A x of few rows, of all threads
    Meeting meeting_;
};

}  // namespace refold
