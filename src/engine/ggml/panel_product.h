// Products of weights in panels as custom ggml nodes (row_panels.h).
#pragma once

#include <atomic>
#include <map>
#include <vector>

#include "core/thread_placement.h"
#include "engine/ggml/handles.h"
#include "engine/ggml/row_panels.h"
#include "engine/ggml/spin_barrier.h"

namespace refold {

// Rows of a product that come from panels of one resident matrix, or what some of its columns add to them.
struct PanelRun {
    const ggml_tensor* weight;  // [columns * fold, rows / fold], in panels
    int64_t fold;
    row_panels::Range panels, groups;  // groups of kInputGroup columns of the weight
    int64_t row;                       // of the result: the first
    int64_t input_group;               // of x, with which the columns begin
    bool add;                          // to what the runs before have written
};

// One object serves all nodes of a graph, which run one after the other.
class PanelProduct {
public:
    explicit PanelProduct(int threads) : threads_(static_cast<size_t>(threads)), placement_(threads) {}
    PanelProduct(const PanelProduct&) = delete;
    PanelProduct& operator=(const PanelProduct&) = delete;

    // weight * x: F32 [rows, tokens]; x F32 [columns, tokens], each token contiguous. The weight
    // [columns * fold, rows / fold] holds consecutive panels (row_panels::pack).
    ggml_tensor* of_panels(ggml_context* context, ggml_tensor* weight, ggml_tensor* x);
    // The runs, which must outlive the graph, either follow each other, or all add to the same rows.
    ggml_tensor* of_runs(ggml_context* context, const std::vector<PanelRun>& runs, int64_t rows,
                         ggml_tensor* x);
    uint64_t bytes() const { return inputs_.bytes(); }

private:
    struct ThreadScratch {
        row_panels::Scratch panels;
        QuantizedInputs few;  // all tokens of a node with few: every thread quantizes them itself
    };

    static void compute_panels(ggml_tensor* dst, int thread, int threads, void* product);
    static void compute_runs(ggml_tensor* dst, int thread, int threads, void* job);
    // Quantizes x, the last source, and calls multiply(panels, inputs) for each range of `panels` panels of
    // the result that this thread takes.
    template <class Multiply>
    void compute(ggml_tensor* dst, int64_t panels, InputForms forms, int thread, int threads,
                 const Multiply& multiply);

    struct Job {
        PanelProduct* product;
        const std::vector<PanelRun>* runs;
    };

    std::vector<ThreadScratch> threads_;
    ThreadPlacement placement_;
    std::map<const std::vector<PanelRun>*, Job> jobs_;
    QuantizedInputs inputs_;  // the tokens of a node, shared by all threads
    SpinBarrier barrier_;
    std::atomic<int64_t> next_{0};
};

}  // namespace refold
