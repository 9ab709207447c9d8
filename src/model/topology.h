// Sharing is data: the topology says, for every position of the forward pass, which stored tensors its
// weights come from. Methods rewrite it, engines execute it, nothing else knows about sharing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"

namespace refold {

// A place in the forward pass that takes a weight. Per position, except the last four.
enum class Slot {
    attn_norm,
    attn_q,
    attn_k,
    attn_v,
    attn_o,
    attn_q_bias,
    attn_k_bias,
    attn_v_bias,
    attn_o_bias,
    ffn_norm,
    ffn_gate,
    ffn_up,
    ffn_down,
    ffn_gate_bias,
    ffn_up_bias,
    ffn_down_bias,
    token_embd,
    output_norm,
    output,
    rope_freqs,
};

// "attn.q", "ffn.down", "token_embd", ...: the names in topology JSON, recipes and reports.
const char* slot_name(Slot slot);
// Throws Error(input) with the nearest name when there is none such.
Slot slot_from_name(const std::string& name);
// Weight matrices (multiplied with activations), not norms and biases.
bool is_matrix(Slot slot);
// attn.o consumes heads along its input (columns); attn.q, attn.k, attn.v produce them along their output
// (rows).
bool heads_are_columns(Slot slot);

// Rows of the matrix as the field counts them: a linear map from `in` to `out` features, stored as `out`
// rows of `in` contiguous elements (ggml shape {in, out}). Vectors have in = length, out = 1.
struct SlotShape {
    int64_t in = 0;
    int64_t out = 0;
};
SlotShape slot_shape(Slot slot, const ModelConfig& config);

// `count` heads of a stored tensor, from head `first` on: head_dim rows each, or head_dim columns in attn.o.
struct HeadRun {
    std::string tensor;
    int64_t first = 0;
    int64_t count = 0;
    bool operator==(const HeadRun&) const = default;
};

// Weight expressions.
struct Dense {
    std::string tensor;
    bool operator==(const Dense&) const = default;
};
struct Heads {
    std::vector<HeadRun> runs;  // in the order of the position's own heads
    bool operator==(const Heads&) const = default;
};
using Expression = std::variant<Dense, Heads>;

struct HeadRef {
    std::string tensor;
    int64_t head = 0;
    bool operator==(const HeadRef&) const = default;
};
// One entry per head; and back, joining neighbours.
std::vector<HeadRef> expand(const Heads& heads);
Heads collapse(const std::vector<HeadRef>& heads);
// Names of the stored tensors an expression reads, in order, without repetition.
std::vector<std::string> tensors_of(const Expression& expression);

using Slots = std::map<Slot, Expression>;

struct Topology {
    std::vector<Slots> positions;
    Slots globals;  // token_embd, output_norm, output, rope_freqs

    // Throws Error(internal) when the position has no such slot.
    const Expression& at(size_t position, Slot slot) const;
    bool has(size_t position, Slot slot) const;
    bool operator==(const Topology&) const = default;
};

// Versioned JSON, key "refold.topology" in GGUF metadata. Slots that hold what the family's naming implies
// (`implied`) are left out; parse fills them in again. A position may be {"like": p}: the same slots as
// position p.
//   {"version": 1, "positions": [{}, {"attn.q": {"heads": [["blk.0.attn_q.weight", 2, 1], ...]}}, {"like":
//   1}]}
// Throws Error(input) that names position and slot for an unknown version, field or slot, a malformed entry,
// or a cycle of "like".
std::string topology_to_json(const Topology& topology, const Topology& implied);
Topology topology_from_json(const std::string& json, const Topology& implied);

}  // namespace refold
