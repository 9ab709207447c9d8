// Sharing is data: the topology says, for every layer of the forward pass, which stored tensors its
// weights come from. Methods rewrite it, engines execute it, nothing else knows about sharing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"
#include "model/slot.h"

namespace refold {

// `count` heads of a stored tensor, beginning with head `first`. A head is head_dim rows, in attn.o head_dim
// columns.
struct HeadRun {
    std::string tensor;
    int64_t first = 0;
    int64_t count = 0;
    bool operator==(const HeadRun&) const = default;
};

// Weight expressions: how a slot's matrix W (out x in) is made from stored tensors. Slots that name the same
// tensors share them.
struct Dense {
    std::string tensor;
    bool operator==(const Dense&) const = default;
};
struct Heads {
    std::vector<HeadRun> runs;  // in the order of the layer's own heads
    bool operator==(const Heads&) const = default;
};
// W = U diag(s) V, or its transpose.
struct LowRank {
    std::string u;           // {rank, out}: out rows
    std::string v;           // {in, rank}: rank rows
    std::string scale = "";  // float32 {rank, n}, whose row `row` is s; empty: s is all ones
    int64_t row = 0;
    bool transposed = false;
    bool operator==(const LowRank&) const = default;
};
// One of several matrices that a Tucker decomposition holds together (TensorLLM). Head h of the core gives
//   W_h = U2 (sum over c of U3[role, c] core[:, :, c, h])^T U1^T      [head_dim x in]
// W stacks all W_h; transposed (attn.o), it has all W_h^T side by side. Where the slot has n times fewer
// heads than the core (GQA), each of its heads is the mean of n neighboring W_h.
struct Tucker {
    std::string core;   // {R1, R2, R3, heads}
    std::string model;  // U1 {in, R1}: R1 rows
    std::string head;   // U2 {head_dim, R2}, float32
    std::string roles;  // U3 {number of roles, R3}, float32
    int64_t role = 0;   // this slot's column of U3
    bool transposed = false;
    // U2 has a head's rows in halves, whereas the rotation pairs neighbors: see rotary_row().
    bool halves = false;
    bool operator==(const Tucker&) const = default;
};
using Base = std::variant<Dense, Heads, LowRank, Tucker>;
// W = base + U diag(s) V: weights that layers share plus a LoRA of one layer's own.
struct Plus {
    Base base;
    LowRank term;
    bool operator==(const Plus&) const = default;
};
constexpr size_t kMostRowParts = 8;
// The rows of a table in several stored tensors, such as ones of different types. Of embedding and output
// only.
struct RowParts {
    // {in, rows} each, at most kMostRowParts. The rows of W follow each other in them as ids_in_order()
    // (row_parts.h) says.
    std::vector<std::string> parts;
    // Float32 {rows of all parts but the last}: which rows of W these are, in the order of the parts. The
    // last part has all others, ascending.
    std::string ids;
    bool operator==(const RowParts&) const = default;
};
using Expression = std::variant<Dense, Heads, LowRank, Tucker, Plus, RowParts>;

// The rotation pairs rows (2i, 2i + 1) of a head. Where a head is stored as all first rows of the pairs, then
// all second ones, this is the index of row `row`.
inline int64_t rotary_row(int64_t row, int64_t head_dim) {
    return row / head_dim * head_dim + row % head_dim % 2 * (head_dim / 2) + row % head_dim / 2;
}

struct HeadRef {
    std::string tensor;
    int64_t head = 0;
    bool operator==(const HeadRef&) const = default;
};
// One entry per head; and back, joining runs of neighbors.
std::vector<HeadRef> expand(const Heads& heads);
Heads collapse(const std::vector<HeadRef>& heads);
// Names of the stored tensors that an expression reads, in order, each once.
std::vector<std::string> tensors_of(const Expression& expression);
// Tensors of few numbers, which stay float32: the scale of LowRank, U2 and U3 of Tucker, ids of RowParts.
bool is_small_factor(const Expression& expression, const std::string& tensor);
// The expression without its LoRA.
Expression base_of(const Expression& expression);

using Slots = std::map<Slot, Expression>;

// The earlier layer whose attention a layer uses in place of its own. That layer's attention is all its own.
struct AttentionSource {
    // Softmax sharing (UniAttn, equation 3): this layer weights its values with that layer's probabilities.
    // It has no queries and keys, and caches values only.
    std::optional<size_t> probabilities;
    // Cross-layer attention (CLA): this layer's queries attend to that layer's keys and values. It has none
    // of its own and caches nothing.
    std::optional<size_t> kv;

    bool own() const { return !probabilities && !kv; }
    // The source layer; `layer` itself when there is none.
    size_t from(size_t layer) const { return probabilities.value_or(kv.value_or(layer)); }
    bool operator==(const AttentionSource&) const = default;
};

// Layers [first, last).
struct LayerRange {
    size_t first = 0, last = 0;
    bool contains(size_t layer) const { return first <= layer && layer < last; }
    bool operator==(const LayerRange&) const = default;
};

struct Topology {
    std::vector<Slots> layers;
    Slots globals;      // slots of the whole model
    int64_t loops = 1;  // how often the layers go through one block (Recursive Transformers); 1: no loop
    std::map<size_t, AttentionSource> sources;  // of the layers whose attention is not their own

    const AttentionSource& source(size_t layer) const;
    // Another layer uses this one's probabilities.
    bool lends_probabilities(size_t layer) const;
    // Another layer reads this one's keys and values.
    bool lends_kv(size_t layer) const;
    // The layer does not have the slot because its attention comes from another one.
    bool is_replaced(size_t layer, Slot slot) const;
    // Throws Error(internal) when the layer has no such slot.
    const Expression& at(size_t layer, Slot slot) const;
    bool has(size_t layer, Slot slot) const;
    // Layers of which some matrix is not, as a whole, that of an earlier layer: how many layers' worth of
    // matrices the file holds (15 of 30 in two loops). Norms, biases, LoRA, W_c and exit maps do not count.
    size_t stored_layers() const;
    bool operator==(const Topology&) const = default;
};

// The value of the GGUF key "refold.topology": see docs/format.md. Slots that are as the family's naming
// implies (`implied`) are left out when written and filled in when read. Writes version 2; reads 1 and 2.
// Throws Error(unsupported) for an unknown version; Error(input) naming layer and slot for an unknown field
// or slot, a malformed entry, or a cycle of "like".
std::string topology_to_json(const Topology& topology, const Topology& implied);
Topology topology_from_json(const std::string& json, const Topology& implied);

}  // namespace refold
