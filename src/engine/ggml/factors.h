// Products with weights made of factors, for few tokens: one node of a graph adds up everything that a group
// of slots takes from one step of the computation, whatever each of them is made of.
#pragma once

#include <vector>

#include "engine/ggml/plan.h"

namespace refold::factors {

// What the combination of a Tucker core's products needs to know: see Tucker in model/topology.h.
struct Combination {
    Run head;   // U2: R2 rows of a head's width, float32
    Run roles;  // U3: R3 rows of one number per role, float32
    int64_t role = 0;
    int64_t heads = 0;  // of the slot
    int64_t group = 1;  // heads of the core that make one of the slot's
    bool halves = false;

    int64_t r2() const { return head.count; }
    int64_t r3() const { return roles.count; }
    int64_t width() const { return head.storage->in(); }
    int64_t core_rows() const { return r2() * r3() * heads * group; }
    bool operator==(const Combination&) const = default;
};

// Something that is added to the rows of a segment.
struct Term {
    enum class Kind {
        rows,        // y[i] += <row i, x>
        transposed,  // y += sum over i of x[i] * row i
        combine,     // products x with a Tucker core [R2, R3, heads * group] -> heads of y
        spread,      // heads of x -> factors of the rows of a Tucker core [R2, R3, heads]
        given,       // y[i] += x[i]
    };
    Kind kind = Kind::rows;
    int source = 0;                   // of the node: its src[source]
    int64_t offset = 0;               // where x begins in a token of the source
    int64_t to = 0;                   // row of the segment where y begins
    Run run{};                        // rows and transposed: rows of a storage
    int64_t column = 0, columns = 0;  // the part of these rows that counts
    Combination combination{};
    bool operator==(const Term&) const = default;
};

// Rows of a node's result that are split between threads by themselves.
struct Segment {
    int64_t first = 0, rows = 0;
    std::vector<Term> terms;
    Run scale{};  // one row of factors for the result; storage is null without
};

struct Product {
    int64_t out = 0;
    std::vector<Segment> segments;
    // Rows [from, to) of a segment; threads take equal numbers of pieces.
    struct Piece {
        size_t segment;
        int64_t from, to;
    };
    std::vector<Piece> pieces;

    // Appends rows and returns the segment.
    Segment& append(int64_t rows) {
        segments.push_back({out, rows, {}, {}});
        out += rows;
        return segments.back();
    }
    bool empty() const { return segments.empty(); }
    // Divides the work, when all terms and layouts are known.
    void divide();
    // The storage that makes up all of the product, with a source of `columns` rows; null where it takes more
    // or less than that. ggml's own product is the faster one then.
    const Storage* whole(int64_t columns) const;
};

// Custom operation of a graph: dst [out, tokens] from the tokens of its sources; `product` is a const
// Product*.
void multiply(ggml_tensor* dst, int thread, int threads, void* product);

}  // namespace refold::factors
