#include "engine/ggml/worker_panels.h"

#include <algorithm>

#include "core/parallel.h"
#include "engine/ggml/handles.h"

namespace refold {
namespace {

using row_panels::kRows;

bool is_view(const ggml_tensor* node) {
    return node->op == GGML_OP_NONE || node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE ||
           node->op == GGML_OP_PERMUTE || node->op == GGML_OP_TRANSPOSE;
}

bool has_float_rows(const ggml_tensor* t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[2] == 1 && t->ne[3] == 1;
}

// Whether panels can compute the product, if nothing else uses its matrix, which may be some rows of a
// tensor, as a client's views of Q, K and V in one are. Products of F32 stay ggml's.
bool can_be_panels(const ggml_tensor* node) {
    if (node->op != GGML_OP_MUL_MAT) return false;
    const ggml_tensor *weight = node->src[0], *x = node->src[1];
    return is_view(weight) && weight->type != GGML_TYPE_F32 && weight->ne[1] >= kRows && weight->ne[2] == 1 &&
           weight->ne[3] == 1 && ggml_is_contiguous(weight) &&
           row_panels::supports(weight->type, weight->ne[0]) && has_float_rows(x) && has_float_rows(node);
}

template <class Do>
void for_nodes(ggml_cgraph* graph, const Do& each) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
        if (ggml_tensor* node = ggml_graph_node(graph, i)) each(node);
}

}  // namespace

bool WorkerPanels::is_own(const ggml_tensor* node) const {
    return node->op == GGML_OP_CUSTOM && std::ranges::equal(node->op_params, own_params_);
}

std::vector<WorkerPanels::Matrices::iterator> WorkerPanels::within(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    std::vector<Matrices::iterator> out;
    auto at = matrices_.upper_bound(first);
    if (at != matrices_.begin()) {
        const auto before = std::prev(at);
        if (before->first + before->second.bytes() > first) out.push_back(before);
    }
    for (; at != matrices_.end() && at->first < first + size; ++at) out.push_back(at);
    return out;
}

WorkerPanels::Matrix* WorkerPanels::matrix_of(const ggml_tensor* product) {
    if (!can_be_panels(product)) return nullptr;
    const ggml_tensor* weight = product->src[0];
    const row_panels::Matrix rows{weight->type, static_cast<const std::byte*>(weight->data), weight->ne[0],
                                  weight->ne[1]};
    const auto there = within(rows.data, ggml_nbytes(weight));
    if (there.empty()) return &(matrices_[rows.data] = {.rows = rows});
    const row_panels::Matrix& known = there.front()->second.rows;
    const bool same = there.size() == 1 && known.data == rows.data && known.type == rows.type &&
                      known.width == rows.width && known.rows == rows.rows;
    return same ? &there.front()->second : nullptr;
}

void WorkerPanels::pack(Matrix& matrix) const {
    const row_panels::Matrix& m = matrix.rows;
    parallel_for(m.panels(), threads_, [&](int64_t i) {
        auto* panel = const_cast<std::byte*>(m.panel(i));
        const std::vector<std::byte> rows(panel, panel + static_cast<size_t>(m.rows_of(i)) * m.row_bytes());
        row_panels::pack(m.type, rows.data(), m.row_bytes(), m.rows_of(i), m.width, panel);
    });
    matrix.packed = true;
}

void WorkerPanels::unpack(Matrix& matrix) {
    const row_panels::Matrix& m = matrix.rows;
    parallel_for(m.panels(), threads_, [&](int64_t i) {
        auto* rows = const_cast<std::byte*>(m.panel(i));
        const std::vector<std::byte> packed(rows, rows + static_cast<size_t>(m.rows_of(i)) * m.row_bytes());
        const row_panels::Matrix panel{m.type, packed.data(), m.width, m.rows_of(i)};
        for (int64_t row = 0; row < panel.rows; ++row)
            row_panels::read_row(panel, row, rows + static_cast<size_t>(row) * m.row_bytes());
    });
    matrix.packed = false;
    changed_ = true;
}

void WorkerPanels::before_access(const void* data, size_t size) {
    for (const auto& found : within(data, size)) {
        found->second.used_otherwise = true;
        if (found->second.packed) unpack(found->second);
    }
}

void WorkerPanels::forget(const void* data, size_t size) {
    for (const auto& found : within(data, size)) matrices_.erase(found);
    changed_ = true;
}

void WorkerPanels::prepare(ggml_cgraph* graph) {
    bool again = false;
    for_nodes(graph, [&](ggml_tensor* node) { again = again || is_own(node); });
    if (again && graph == prepared_ && !changed_) return;
    for_nodes(graph, [&](ggml_tensor* node) {
        if (is_own(node)) {
            node->op = GGML_OP_MUL_MAT;
            std::ranges::fill(node->op_params, 0);
        }
    });

    for_nodes(graph, [&](ggml_tensor* node) { matrix_of(node); });
    // What else reads or writes a matrix needs its rows.
    for_nodes(graph, [&](ggml_tensor* node) {
        if (is_view(node)) return;
        before_access(node->data, ggml_nbytes(node));
        const bool product = matrix_of(node) != nullptr;
        for (int i = product ? 1 : 0; i < GGML_MAX_SRC; ++i)
            if (const ggml_tensor* source = node->src[i]) before_access(source->data, ggml_nbytes(source));
    });
    const ggml_context_ptr context = make_context(static_cast<size_t>(ggml_graph_n_nodes(graph)));
    for_nodes(graph, [&](ggml_tensor* node) {
        Matrix* matrix = matrix_of(node);
        if (matrix == nullptr || matrix->used_otherwise) return;
        if (!matrix->packed) pack(*matrix);
        const ggml_tensor* own = product_.of_panels(context.get(), node->src[0], node->src[1]);
        own_params_.assign(std::begin(own->op_params), std::end(own->op_params));
        node->op = own->op;
        std::ranges::copy(own->op_params, node->op_params);
    });
    prepared_ = graph;
    changed_ = false;
}

}  // namespace refold
