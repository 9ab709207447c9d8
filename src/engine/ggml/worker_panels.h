// Products of a worker by refold's kernels. Its client's graphs are ggml's operations, and its memory holds
// matrices in rows: they are packed into panels where they lie, and their products become panel_product.h's.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/ggml/panel_product.h"

namespace refold {

// Every function is called by one thread at a time, and not while a graph is computed.
class WorkerPanels {
public:
    explicit WorkerPanels(int threads) : threads_(threads), product_(threads) {}

    // Before the CPU computes the graph, the first time or again: MUL_MAT with a matrix that nothing else in
    // the graph reads or writes becomes a product of panels. Others stay.
    void prepare(ggml_cgraph* graph);
    // Before [data, data + size) is read or written: matrices there are rows again, for good.
    void before_access(const void* data, size_t size);
    // Before this memory is given back.
    void forget(const void* data, size_t size);

private:
    struct Matrix {
        row_panels::Matrix rows;  // as the client knows it
        bool packed = false;
        bool used_otherwise = false;  // stays in rows

        size_t bytes() const { return static_cast<size_t>(rows.rows) * rows.row_bytes(); }
    };
    using Matrices = std::map<const std::byte*, Matrix>;  // by their first byte; none overlap

    bool is_own(const ggml_tensor* node) const;
    // The matrix of a product that panels can compute, new or known; null: there is none.
    Matrix* matrix_of(const ggml_tensor* product);
    std::vector<Matrices::iterator> within(const void* data, size_t size);
    void pack(Matrix& matrix) const;
    void unpack(Matrix& matrix);

    int threads_;
    PanelProduct product_;
    std::vector<int32_t> own_params_;  // of the nodes that are products of panels
    Matrices matrices_;
    // The graph that was prepared last, which may be computed again, and whether a matrix has changed since.
    const ggml_cgraph* prepared_ = nullptr;
    bool changed_ = false;
};

}  // namespace refold
