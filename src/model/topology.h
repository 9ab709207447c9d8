// Sharing is data: the topology says, for every position of the forward pass, which stored tensors its
// weights come from. Methods rewrite it, engines execute it, nothing else knows about sharing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/config.h"

namespace refold {

// `position` of the slots that belong to the whole model.
constexpr size_t kModelPosition = static_cast<size_t>(-1);

// A place in the forward pass that takes a weight. Up to ffn_output_norm_bias, and exit_map, per position,
// the rest once per model.
enum class Slot {
    attn_norm,
    attn_norm_bias,
    attn_q,
    attn_k,
    attn_v,
    attn_o,
    attn_q_bias,
    attn_k_bias,
    attn_v_bias,
    attn_o_bias,
    attn_q_norm,  // over each head's queries, before the rotation
    attn_k_norm,
    attn_prefix_k,  // keys and values that every token sees before the sequence: prefix tuning
    attn_prefix_v,
    // W_c: what makes up for shared attention (UniAttn, Table 12), named by what it reads and where it adds
    attn_comp,         // normed input -> output of the attention
    attn_comp_ffn,     // normed input -> output of the FFN
    attn_comp_o,       // normed input -> input of attn.o
    attn_comp_v,       // values -> input of attn.o
    attn_post_norm,    // of the attention's output, before it is added
    attn_output_norm,  // of the residual stream after the attention was added (post-norm)
    attn_output_norm_bias,
    ffn_norm,
    ffn_norm_bias,
    ffn_gate,
    ffn_up,
    ffn_down,
    ffn_gate_bias,
    ffn_up_bias,
    ffn_down_bias,
    ffn_post_norm,
    ffn_output_norm,
    ffn_output_norm_bias,

    token_embd,
    position_embd,
    token_types,
    embd_norm,  // of the sum of the embeddings
    embd_norm_bias,
    output_norm,
    output_norm_bias,
    head_dense,  // masked-language-model head: dense, activation and norm before the output
    head_dense_bias,
    head_norm,
    head_norm_bias,
    output,
    output_bias,
    pooler,  // tanh(pooler * first token + bias)
    pooler_bias,
    rope_freqs,

    // at the end of a loop: x + W x, x the residual stream, is what the final norm reads of a token that
    // exits
    exit_map,
};

// "attn.q", "ffn.down", "token_embd", ...: the names in topology JSON, recipes and reports.
const char* slot_name(Slot slot);
// Throws Error(input) with the nearest name when there is none such.
Slot slot_from_name(const std::string& name);
// Weight matrices, multiplied with activations.
bool is_matrix(Slot slot);
// Tables of which single rows are read: token_embd, position_embd, token_types.
bool is_table(Slot slot);
// Norms, biases and factors: one dimension, float32.
bool is_vector(Slot slot);
// Rows that are used as they are: attn.prefix_k, attn.prefix_v.
bool is_prefix(Slot slot);
// W_c, in one of its four places.
bool is_compensation(Slot slot);
// Slots that a position without attention, or without FFN, does not have.
bool belongs_to_attention(Slot slot);
bool belongs_to_ffn(Slot slot);
// The slot of the vector that is added to a matrix's product or a norm's result.
std::optional<Slot> bias_of(Slot slot);
// attn.o consumes heads along its input (columns); attn.q, attn.k, attn.v produce them along their output
// (rows).
bool heads_are_columns(Slot slot);
bool consists_of_heads(Slot slot);

// Rows of the matrix as the field counts them: a linear map from `in` to `out` features, stored as `out`
// rows of `in` contiguous elements (ggml shape {in, out}). Vectors have in = length, out = 1.
struct SlotShape {
    int64_t in = 0;
    int64_t out = 0;
};
// Without a position: the size that positions have by default.
SlotShape slot_shape(Slot slot, const ModelConfig& config, size_t position = kModelPosition);

// `count` heads of a stored tensor, from head `first` on: head_dim rows each, or head_dim columns in attn.o.
struct HeadRun {
    std::string tensor;
    int64_t first = 0;
    int64_t count = 0;
    bool operator==(const HeadRun&) const = default;
};

// Weight expressions: how a slot's matrix W (out x in) is made from stored tensors. Several slots that name
// the same tensors share them.
struct Dense {
    std::string tensor;
    bool operator==(const Dense&) const = default;
};
struct Heads {
    std::vector<HeadRun> runs;  // in the order of the position's own heads
    bool operator==(const Heads&) const = default;
};
// W = U diag(s) V, or its transpose.
struct LowRank {
    std::string u;           // {rank, out}: out rows
    std::string v;           // {in, rank}: rank rows
    std::string scale = "";  // float32 {rank, n}: s is its row `row`; empty: all ones
    int64_t row = 0;
    bool transposed = false;
    bool operator==(const LowRank&) const = default;
};
// One matrix of a Tucker decomposition with common factors: for every head h of the core
//   W_h = U2 (sum over c of U3[role, c] core[:, :, c, h])^T U1^T      [head_dim x in]
// and W is the W_h below each other; transposed (attn.o), W_h^T beside each other. Where the slot has fewer
// heads than the core (GQA), each of its heads is the mean of as many neighbouring W_h.
struct Tucker {
    std::string core;   // {R1, R2, R3, heads}
    std::string model;  // U1 {in, R1}: R1 rows
    std::string head;   // U2 {head_dim, R2}, float32
    std::string roles;  // U3 {number of roles, R3}, float32
    int64_t role = 0;   // this slot's column of U3
    bool transposed = false;
    // U2 has each head's rows as (first half, second half), the rotation pairs neighbours: see
    // rotary_row().
    bool halves = false;
    bool operator==(const Tucker&) const = default;
};
using Base = std::variant<Dense, Heads, LowRank, Tucker>;
// W = base + U diag(s) V: a position's own LoRA beside weights that it shares.
struct Plus {
    Base base;
    LowRank term;
    bool operator==(const Plus&) const = default;
};
using Expression = std::variant<Dense, Heads, LowRank, Tucker, Plus>;

// Where row `row` of a head lies when its rows are (first half, second half) instead of pairs.
inline int64_t rotary_row(int64_t row, int64_t head_dim) {
    return row / head_dim * head_dim + row % head_dim % 2 * (head_dim / 2) + row % head_dim / 2;
}

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
// Factors of a few numbers, which stay float32: the scales of LowRank, U2 and U3 of Tucker.
bool is_small_factor(const Expression& expression, const std::string& tensor);
// The expression without its LoRA.
Expression base_of(const Expression& expression);

using Slots = std::map<Slot, Expression>;

// Where a position's attention comes from, as far as it is not its own. The source is an earlier position
// whose attention is its own in that respect.
struct AttentionSource {
    // Softmax sharing (UniAttn, equation 3): this position's values are weighted with that position's
    // probabilities. It has no queries and keys, and caches values only.
    std::optional<size_t> probabilities;
    // Cross-layer attention (CLA): this position's queries attend to that position's keys and values. It has
    // none itself and caches nothing.
    std::optional<size_t> kv;

    bool own() const { return !probabilities && !kv; }
    // The position that it comes from; `position`, its own, when it is own.
    size_t from(size_t position) const { return probabilities.value_or(kv.value_or(position)); }
    bool operator==(const AttentionSource&) const = default;
};

// Positions [first, last).
struct PositionRange {
    size_t first = 0, last = 0;
    bool contains(size_t position) const { return first <= position && position < last; }
    bool operator==(const PositionRange&) const = default;
};

struct Topology {
    std::vector<Slots> positions;
    Slots globals;      // token_embd, output_norm, output, rope_freqs
    int64_t loops = 1;  // positions are this many rounds of one block (Recursive Transformers); 1: no loop
    std::map<size_t, AttentionSource> sources;  // of the positions whose attention is not their own

    const AttentionSource& source(size_t position) const;
    // Another position uses this one's probabilities.
    bool lends_probabilities(size_t position) const;
    // Another position reads this one's keys and values.
    bool lends_kv(size_t position) const;
    // A slot that the position has no use for, because its attention comes from another one.
    bool is_replaced(size_t position, Slot slot) const;
    // Throws Error(internal) when the position has no such slot.
    const Expression& at(size_t position, Slot slot) const;
    bool has(size_t position, Slot slot) const;
    bool operator==(const Topology&) const = default;
};

// Versioned JSON, key "refold.topology" in GGUF metadata; docs/format.md describes it. Slots that hold what
// the family's naming implies (`implied`) are left out; parse fills them in again. A position may be
// {"like": p}: the same slots as position p. "attention": {"probabilities": p} or {"kv": p} names the
// position's source.
// Throws Error(input) that names position and slot for an unknown version, field or slot, a malformed entry,
// or a cycle of "like".
std::string topology_to_json(const Topology& topology, const Topology& implied);
Topology topology_from_json(const std::string& json, const Topology& implied);

}  // namespace refold
