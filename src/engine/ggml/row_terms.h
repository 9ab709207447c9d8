// Low-rank terms and biases that rows of a step add to products with weights which all rows share. There are
// several sets of them - the loops of a looped model, adapters - and each row takes those of its own set. The
// set of each row is data of the step, so one graph serves every mixture. Neighboring rows of one set are
// multiplied together.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/ggml/handles.h"
#include "engine/ggml/panels.h"
#include "engine/ggml/spin_barrier.h"
#include "model/model.h"

namespace refold {

class RowTerms {
public:
    // B (A x): a [rank, in], b [out, rank]. Rank 0: none.
    struct Term {
        Panels a, b;
    };
    // What a term is made of: A [rank][in], B [out][rank], and the types that they were stored in.
    struct Factors {
        int64_t rank = 0;
        DType a_type = DType::F32, b_type = DType::F32;
        std::vector<float> a = {}, b = {};
    };
    // Quantized factors are kept in BF16, or in Q8_0 where row_panels::supports() it; with `f32` all in F32.
    static Term term(const Factors& factors, bool f32);

    // `config`: of the model whose slots these are.
    RowTerms(const ModelConfig& config, int threads) : config_(config), threads_(threads) {}
    RowTerms(const RowTerms&) = delete;
    RowTerms& operator=(const RowTerms&) = delete;

    // The graphs that add_to() has made must not be used after these.
    void put(size_t layer, Slot slot, size_t set, Term term);
    void put_biases(size_t layer, Slot slot, std::vector<std::vector<float>> by_set);
    void erase(size_t set);

    // Slots with one input, whose products follow each other in y from element `first` of a row on.
    struct Products {
        size_t layer;
        std::span<const Slot> slots;
        int64_t first;
    };
    // Adds B (A x) and the bias of every row's set to y = W x, in place, as one node. x [in, tokens],
    // y [out, tokens], sets I32 [tokens]; below 0: none. Returns y itself where no set has anything to add. y
    // may be x if it belongs to one slot.
    ggml_tensor* add_to(ggml_context* context, const Products& products, ggml_tensor* y, ggml_tensor* x,
                        ggml_tensor* sets);

    uint64_t bytes() const;

private:
    // Terms and biases of one slot by set; either may be empty.
    struct Matrix {
        std::vector<Term> terms;
        std::vector<std::vector<float>> biases;

        const Term* term(int32_t set) const {
            const auto s = static_cast<size_t>(set);
            return set < 0 || s >= terms.size() || terms[s].a.rows() == 0 ? nullptr : &terms[s];
        }
        void add_bias(int32_t set, float* y) const;
    };
    // Matrices that one node multiplies with one input.
    struct Group {
        RowTerms* terms;
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
    static void compute(ggml_tensor* dst, int thread, int threads, void* group);
    static void add_block(const Group& group, const Rows& rows, int64_t first, int64_t count);
    static void add_few_rows(const Group& group, const Rows& rows, int thread, int threads);

    ModelConfig config_;
    int threads_;
    std::map<std::pair<size_t, Slot>, Matrix> matrices_;
    std::map<std::tuple<size_t, std::vector<Slot>, int64_t>, Group> groups_;  // by layer, slots, first
    std::vector<float> ax_;  // A x of few rows [row][Group::width], shared by all threads
    SpinBarrier barrier_;
};

}  // namespace refold
