// Products with factored weights. One ggml node computes one step (U^T x, core, U) for a
// group of slots, whatever each of them is made of: its result consists of segments, each a sum of terms.
#pragma once

#include <vector>

#include "engine/ggml/linear_plan.h"

namespace refold::factors {

// The head and role factors of a slot's Tucker decomposition (Tucker in model/topology.h).
struct Combination {
    Run head;             // U2, F32 [R2][head width]
    Run roles;            // U3, F32 [R3][roles]
    int64_t role = 0;     // the slot's column of U3
    int64_t heads = 0;    // of the slot
    int64_t group = 1;    // heads of the core per head of the slot, which is their mean
    bool halves = false;  // U2 is in the order (first half, second half): see rotary_row()

    int64_t r2() const { return head.count; }
    int64_t r3() const { return roles.count; }
    int64_t width() const { return head.storage->in(); }
    int64_t core_rows() const { return r2() * r3() * heads * group; }
    bool operator==(const Combination&) const = default;
};

// A product that is added to the rows of a segment.
struct Term {
    enum class Kind {
        rows,        // y[i] += <row i, x>
        transposed,  // y += sum over i of x[i] * row i
        combine,     // x: core times input [R2, R3, group, heads] -> y [width, heads], by U2 and U3
        spread,      // transposed slots: x [width, heads] -> y [R2, R3, heads], by U2 and U3
        identity,    // y[i] += x[i]
    };
    Kind kind = Kind::rows;
    int source = 0;                   // x is in src[source] of the node
    int64_t offset = 0;               // first element of x in each token of the source
    int64_t segment_row = 0;          // first row of y in the segment
    Run run{};                        // rows, transposed: the rows of a storage
    int64_t column = 0, columns = 0;  // columns [column, column + columns) of these rows
    Combination combination{};        // combine, spread
    bool operator==(const Term&) const = default;
};

// Consecutive rows of a node's result, and the terms that add up to them.
struct Segment {
    int64_t first = 0, rows = 0;
    std::vector<Term> terms;
    Run scale{};  // F32 [rows]: multiplies the sum; storage null: none
};

// All segments of one node.
struct Product {
    int64_t out = 0;  // rows of all segments
    std::vector<Segment> segments;
    // Rows [from, to) of a segment. Threads take equal numbers of work items.
    struct WorkItem {
        size_t segment;
        int64_t from, to;
    };
    std::vector<WorkItem> work_items;

    // Appends a segment of `rows` rows.
    Segment& append(int64_t rows) {
        segments.push_back({out, rows, {}, {}});
        out += rows;
        return segments.back();
    }
    bool empty() const { return segments.empty(); }
    // Fills work_items. All terms and layouts must be known.
    void split_work();
    // The storage if the product is one whole storage in panels times a source of `columns` rows, where a
    // node of PanelProduct is faster; else null.
    const Storage* whole(int64_t columns) const;
};

// Whether it is a product of panels, which may be a node of its own (panel_product.h).
bool is_of_panels(const Term& term);

// Custom ggml operations: dst F32 [out, tokens] from its sources F32 [.., tokens], or added to what dst is,
// in place; dst is the first source then. `product` is a const Product*. Each term is summed up by itself and
// then added to those before it, whatever the number of tokens.
void multiply(ggml_tensor* dst, int thread, int threads, void* product);
void add(ggml_tensor* dst, int thread, int threads, void* product);

}  // namespace refold::factors
