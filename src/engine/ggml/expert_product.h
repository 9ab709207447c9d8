// A mixture of experts as custom ggml nodes: choosing experts, sorting tokens by expert, products with the
// weights of each expert, and the weighted sum of the results.
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "engine/ggml/linear_plan.h"
#include "engine/ggml/quantized_inputs.h"
#include "engine/ggml/row_panels.h"
#include "engine/ggml/spin_barrier.h"
#include "model/routing.h"

namespace refold {

// y = W x of each expert, for one slot or for slots with the same input, whose rows follow each other in y.
struct ExpertPlan {
    struct Weights {
        std::vector<Run> experts;     // rows of a storage in Layout::plain or Layout::panels
        int64_t rows = 0;             // of an expert
        ggml_tensor* bias = nullptr;  // [experts * rows]
    };
    int64_t in = 0, out = 0;
    std::vector<Weights> slots;
};

// Shapes, innermost dimension first; a use is a token with one of its experts:
//   routes  F32 [2 * used, tokens]: the numbers of the experts, and their weights (model/routing.h)
//   uses    F32 [features, tokens * used]: sorted by expert, as dispatch() in model/routing.h does
// One object serves all nodes of a graph, which run one after the other.
class ExpertProduct {
public:
    explicit ExpertProduct(int threads) : threads_(static_cast<size_t>(threads)) {}
    ExpertProduct(const ExpertProduct&) = delete;
    ExpertProduct& operator=(const ExpertProduct&) = delete;

    // From scores F32 [experts, tokens].
    ggml_tensor* route(ggml_context* context, ggml_tensor* scores, int64_t used, bool normalized);
    // The uses of x F32 [features, tokens]; and the weighted sum of a token's uses, back.
    ggml_tensor* dispatch(ggml_context* context, ggml_tensor* x, ggml_tensor* routes);
    ggml_tensor* combine(ggml_context* context, ggml_tensor* uses, ggml_tensor* routes);
    // [plan.out, uses]; the plan must outlive the graph.
    ggml_tensor* multiply(ggml_context* context, const ExpertPlan& plan, ggml_tensor* uses,
                          ggml_tensor* routes);
    uint64_t bytes() const;

private:
    struct Job {
        ExpertProduct* product;
        const ExpertPlan* plan;
    };
    // Inputs in a type that ggml's products of rows take.
    struct Rows {
        std::vector<std::byte> data;
        size_t stride = 0;
    };
    static void compute_product(ggml_tensor* dst, int thread, int threads, void* job);
    void compute(ggml_tensor* dst, const ExpertPlan& plan, int thread, int threads);
    void fit(const ExpertPlan& plan, const ggml_tensor* x);
    void convert(const ggml_tensor* x, int64_t first, int64_t last);
    struct Part;
    void multiply_part(const Part& part, const ggml_tensor* x, int thread) const;

    struct ThreadScratch {
        mutable row_panels::Scratch panels;
    };
    std::vector<ThreadScratch> threads_;
    std::map<const ExpertPlan*, Job> jobs_;
    QuantizedInputs inputs_;  // of panels
    bool in_panels_ = false;
    std::map<ggml_type, Rows> rows_;  // by type, of plain rows; F32 is read where it is
    SpinBarrier barrier_;
    std::atomic<int64_t> next_{0};
};

}  // namespace refold
