// The slots: every place in the forward pass that takes a weight, with everything that is known about it
// without looking at a model. A new slot is an enumerator, its row in the table, and the code that reads its
// weight.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace refold {

struct ModelConfig;

// `layer` of the slots that belong to the whole model.
constexpr size_t kWholeModel = static_cast<size_t>(-1);

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
    // W_c, which makes up for shared attention (UniAttn, Table 12), by its input and what it is added to
    attn_comp,         // normed input -> output of the attention, after attn.post_norm
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

    // at the end of a loop: the final norm of a token that exits there reads x + W x instead of the residual
    // stream x
    exit_map,
    // the logits of a token that exits there are output times its final hidden state plus this times it
    exit_output,

    // Of the attention. New slots come last: tests draw random weights by their numbers.
    attn_prefix,     // vectors of which the layer's own maps make such keys and values (prefix_rows.h)
    attn_comp_norm,  // normed input -> input of attn.post_norm
    // Norms of queries and keys with a gain for each row of attn.q and attn.k: over all of them at once, or
    // head by head (ModelConfig::norm_by_head).
    attn_q_norm_all,
    attn_k_norm_all,
    rope_freqs_long,  // instead of rope_freqs in sequences that are longer than Rope::original_context
    // By query head: a score in its softmax that weights no value (gpt-oss).
    attn_sinks,

    // A mixture of experts in place of the FFN: the router scores the experts, of which a token uses the
    // best. Matrices and biases of all experts of a layer are one, expert below expert.
    ffn_router,
    ffn_router_bias,
    ffn_gate_exps,
    ffn_up_exps,
    ffn_down_exps,
    ffn_gate_exps_bias,
    ffn_up_exps_bias,
    ffn_down_exps_bias,

    // normed sum of the embeddings -> residual stream, where embeddings are narrower (ALBERT)
    embd_map,
    embd_map_bias,
    // final hidden state of a loop -> score, whose sigmoid is the probability to exit there (Ouro)
    exit_gate,
    exit_gate_bias,

    // Several residual streams (AltUp): the embedding -> the streams but the first, and what the streams but
    // the first give to the result; each has one matrix for each of these streams, below each other
    streams_in,
    streams_out,
    stream_router_norm,
    stream_router,   // normed stream -> a score of each stream, of which the next two make coefficients
    stream_predict,  // of all streams for the prediction of each
    stream_correct,  // of the layer's change for each stream
    // normed input -> rank -> what is added to it, beside the attention (LAuReL)
    laurel_down,
    laurel_up,
    laurel_norm,
    // The inputs of all layers: rows of a table by token, plus a normed map of the embedding
    layer_input_embd,
    layer_input_map,
    layer_input_norm,
    // What a layer's own input adds to the streams but the first: a gain, and gate and map of the first
    layer_input_scale,
    layer_input_gate,
    layer_input_up,
    layer_input_post_norm,

    // pooled vector -> how well a text answers another one (sequence classification with one label)
    score,
    score_bias,

    count,  // of the slots; not a slot
};
inline constexpr auto kSlotCount = static_cast<size_t>(Slot::count);

enum class SlotScope { layer, model };

enum class SlotKind {
    matrix,     // multiplied with activations
    table,      // single rows are read
    norm_gain,  // these four have one dimension, float32
    norm_bias,
    bias,
    rope_factors,
    prefix,  // rows before the sequence, float32
};

enum class SlotModule {
    embedding,
    attention,
    compensation,  // W_c: goes where the attention goes
    ffn,
    experts,  // in place of the FFN's matrices
    stream,   // norms of the residual stream: after a sum, and before the output
    head,     // from the final norm to logits
    pooler,
    rotation,
    exit,
    streams,  // several residual streams, LAuReL, inputs of layers
};

// Sizes of rows and columns.
enum class Extent {
    one,
    n_embd,
    q,   // query heads of the layer x head_dim
    kv,  // key/value heads of the layer x head_dim
    head_dim,
    n_ff,
    n_vocab,
    positions,
    token_types,
    prefix,
    rotations,  // half of a head's rotated dimensions
    embedding,  // of a row of the embeddings; n_embd, but for ALBERT
    heads,      // query heads of the layer
    experts,
    expert_ff,     // channels of an expert
    experts_ff,    // of all experts
    experts_embd,  // n_embd x experts
    streams,
    streams_squared,
    added_streams,  // n_embd x streams but the first
    laurel,         // rank of LAuReL's map
    layer_input,
    layer_inputs,  // of all layers
};

// The map of the attention that a slot is, or whose result it changes.
enum class Projection { query, key, value, output };

// Where a weight has the heads (attention) or channels (FFN) that methods share and cut. A vector is one row.
enum class UnitAxis { rows, columns };

enum class SlotOrigin {
    family,  // the family names its tensor
    method,  // methods add it to any family
    either,
};

// How quantization treats it: embeddings have a type of their own.
enum class QuantizedAs { matrix, embedding, unchanged };

struct SlotProperties {
    Slot slot;
    const char* name;  // in topology JSON, recipes and reports
    SlotScope scope;
    SlotKind kind;
    SlotModule module;
    // A linear map from `in` to `out` features, stored as `out` rows of `in` contiguous elements (ggml shape
    // {in, out}). Vectors have in = length, out = 1.
    Extent in, out;
    std::optional<Slot> bias;   // of matrices and gains: the vector that is added to the result
    std::optional<Slot> group;  // of matrices: the first of the slots that are multiplied with the same input
    // Of a layer's matrices: the norm that makes their input. In a layer without ffn.norm, attn.norm also
    // makes the FFN's (GPT-J).
    std::optional<Slot> norm;
    std::optional<Projection> projection;
    std::optional<UnitAxis> units;
    SlotOrigin origin;
    QuantizedAs quantized;

    consteval SlotProperties(Slot slot_, const char* name_, SlotScope scope_, SlotKind kind_,
                             SlotModule module_, Extent in_, Extent out_, std::optional<Slot> bias_,
                             std::optional<Slot> group_, std::optional<Slot> norm_,
                             std::optional<Projection> projection_, std::optional<UnitAxis> units_,
                             SlotOrigin origin_, QuantizedAs quantized_)
        : slot(slot_),
          name(name_),
          scope(scope_),
          kind(kind_),
          module(module_),
          in(in_),
          out(out_),
          bias(bias_),
          group(group_),
          norm(norm_),
          projection(projection_),
          units(units_),
          origin(origin_),
          quantized(quantized_) {}
};

namespace slot_table {

using S = Slot;
using M = SlotModule;
using E = Extent;
using P = Projection;
using U = UnitAxis;
using O = SlotOrigin;
using Q = QuantizedAs;
inline constexpr auto L = SlotScope::layer, W = SlotScope::model;
inline constexpr auto none = std::nullopt;
using OptionalSlot = std::optional<Slot>;

// One function for each kind. Its arguments are the properties that the kind can have; none has a default, so
// a row that leaves one out does not compile.
// clang-format off
consteval SlotProperties matrix(S slot, const char* name, SlotScope scope, M module, E in, E out,
                                OptionalSlot bias, OptionalSlot group, OptionalSlot norm,
                                std::optional<P> projection, std::optional<U> units, O origin, Q quantized) {
    return {slot, name, scope, SlotKind::matrix, module, in, out, bias, group, norm, projection, units, origin,
            quantized};
}
consteval SlotProperties gain(S slot, const char* name, SlotScope scope, M module, E length, OptionalSlot bias,
                              std::optional<P> projection) {
    return {slot, name, scope, SlotKind::norm_gain, module, length, E::one, bias, none, none, projection, none,
            O::family, Q::unchanged};
}
consteval SlotProperties gain_of_heads(S slot, const char* name, E length, P projection) {
    return {slot, name, L, SlotKind::norm_gain, M::attention, length, E::one, none, none, none, projection,
            U::columns, O::family, Q::unchanged};
}
consteval SlotProperties norm_bias(S slot, const char* name, SlotScope scope, M module, E length) {
    return {slot, name, scope, SlotKind::norm_bias, module, length, E::one, none, none, none, none, none,
            O::family, Q::unchanged};
}
consteval SlotProperties bias(S slot, const char* name, SlotScope scope, M module, E length,
                              std::optional<P> projection, std::optional<U> units, O origin) {
    return {slot, name, scope, SlotKind::bias, module, length, E::one, none, none, none, projection, units,
            origin, Q::unchanged};
}
consteval SlotProperties table(S slot, const char* name, E width, E rows, Q quantized) {
    return {slot, name, W, SlotKind::table, M::embedding, width, rows, none, none, none, none, none,
            O::family, quantized};
}
consteval SlotProperties prefix(S slot, const char* name, E in, std::optional<P> projection,
                                std::optional<U> units) {
    return {slot, name, L, SlotKind::prefix, M::attention, in, E::prefix, none, none, none, projection,
            units, O::method, Q::unchanged};
}
consteval SlotProperties rope_factors(S slot, const char* name) {
    return {slot, name, W, SlotKind::rope_factors, M::rotation, E::rotations, E::one, none, none, none, none,
            none, O::family, Q::unchanged};
}

inline constexpr std::array kRows = {
    gain(S::attn_norm, "attn.norm", L, M::attention, E::n_embd, S::attn_norm_bias, none),
    norm_bias(S::attn_norm_bias, "attn.norm.bias", L, M::attention, E::n_embd),
    matrix(S::attn_q, "attn.q", L, M::attention, E::n_embd, E::q, S::attn_q_bias,
           S::attn_q, S::attn_norm, P::query, U::rows, O::family, Q::matrix),
    matrix(S::attn_k, "attn.k", L, M::attention, E::n_embd, E::kv, S::attn_k_bias,
           S::attn_q, S::attn_norm, P::key, U::rows, O::family, Q::matrix),
    matrix(S::attn_v, "attn.v", L, M::attention, E::n_embd, E::kv, S::attn_v_bias,
           S::attn_q, S::attn_norm, P::value, U::rows, O::family, Q::matrix),
    matrix(S::attn_o, "attn.o", L, M::attention, E::q, E::n_embd, S::attn_o_bias,
           S::attn_o, none, P::output, U::columns, O::family, Q::matrix),
    bias(S::attn_q_bias, "attn.q.bias", L, M::attention, E::q, P::query, U::columns, O::family),
    bias(S::attn_k_bias, "attn.k.bias", L, M::attention, E::kv, P::key, U::columns, O::family),
    bias(S::attn_v_bias, "attn.v.bias", L, M::attention, E::kv, P::value, U::columns, O::family),
    bias(S::attn_o_bias, "attn.o.bias", L, M::attention, E::n_embd, P::output, none, O::either),
    gain(S::attn_q_norm, "attn.q_norm", L, M::attention, E::head_dim, none, P::query),
    gain(S::attn_k_norm, "attn.k_norm", L, M::attention, E::head_dim, none, P::key),
    prefix(S::attn_prefix_k, "attn.prefix_k", E::kv, P::key, U::columns),
    prefix(S::attn_prefix_v, "attn.prefix_v", E::kv, P::value, U::columns),
    matrix(S::attn_comp, "attn.comp", L, M::compensation, E::n_embd, E::n_embd, none,
           S::attn_comp, S::attn_norm, none, none, O::method, Q::matrix),
    matrix(S::attn_comp_ffn, "attn.comp_ffn", L, M::compensation, E::n_embd, E::n_embd, none,
           S::attn_comp_ffn, S::attn_norm, none, none, O::method, Q::matrix),
    matrix(S::attn_comp_o, "attn.comp_o", L, M::compensation, E::n_embd, E::q, none,
           S::attn_comp_o, S::attn_norm, none, none, O::method, Q::matrix),
    matrix(S::attn_comp_v, "attn.comp_v", L, M::compensation, E::kv, E::q, none,
           S::attn_comp_v, none, none, none, O::method, Q::matrix),
    gain(S::attn_post_norm, "attn.post_norm", L, M::attention, E::n_embd, none, none),
    gain(S::attn_output_norm, "attn.output_norm", L, M::stream, E::n_embd, S::attn_output_norm_bias, none),
    norm_bias(S::attn_output_norm_bias, "attn.output_norm.bias", L, M::stream, E::n_embd),
    gain(S::ffn_norm, "ffn.norm", L, M::ffn, E::n_embd, S::ffn_norm_bias, none),
    norm_bias(S::ffn_norm_bias, "ffn.norm.bias", L, M::ffn, E::n_embd),
    matrix(S::ffn_gate, "ffn.gate", L, M::ffn, E::n_embd, E::n_ff, S::ffn_gate_bias,
           S::ffn_gate, S::ffn_norm, none, U::rows, O::family, Q::matrix),
    matrix(S::ffn_up, "ffn.up", L, M::ffn, E::n_embd, E::n_ff, S::ffn_up_bias,
           S::ffn_gate, S::ffn_norm, none, U::rows, O::family, Q::matrix),
    matrix(S::ffn_down, "ffn.down", L, M::ffn, E::n_ff, E::n_embd, S::ffn_down_bias,
           S::ffn_down, none, none, U::columns, O::family, Q::matrix),
    bias(S::ffn_gate_bias, "ffn.gate.bias", L, M::ffn, E::n_ff, none, U::columns, O::family),
    bias(S::ffn_up_bias, "ffn.up.bias", L, M::ffn, E::n_ff, none, U::columns, O::family),
    bias(S::ffn_down_bias, "ffn.down.bias", L, M::ffn, E::n_embd, none, none, O::either),
    gain(S::ffn_post_norm, "ffn.post_norm", L, M::ffn, E::n_embd, none, none),
    gain(S::ffn_output_norm, "ffn.output_norm", L, M::stream, E::n_embd, S::ffn_output_norm_bias, none),
    norm_bias(S::ffn_output_norm_bias, "ffn.output_norm.bias", L, M::stream, E::n_embd),
    table(S::token_embd, "token_embd", E::embedding, E::n_vocab, Q::embedding),
    table(S::position_embd, "position_embd", E::embedding, E::positions, Q::unchanged),
    table(S::token_types, "token_types", E::embedding, E::token_types, Q::unchanged),
    gain(S::embd_norm, "embd_norm", W, M::embedding, E::embedding, S::embd_norm_bias, none),
    norm_bias(S::embd_norm_bias, "embd_norm.bias", W, M::embedding, E::embedding),
    gain(S::output_norm, "output_norm", W, M::stream, E::n_embd, S::output_norm_bias, none),
    norm_bias(S::output_norm_bias, "output_norm.bias", W, M::stream, E::n_embd),
    matrix(S::head_dense, "head.dense", W, M::head, E::n_embd, E::embedding, S::head_dense_bias,
           S::head_dense, none, none, none, O::family, Q::matrix),
    bias(S::head_dense_bias, "head.dense.bias", W, M::head, E::embedding, none, none, O::family),
    gain(S::head_norm, "head.norm", W, M::head, E::embedding, S::head_norm_bias, none),
    norm_bias(S::head_norm_bias, "head.norm.bias", W, M::head, E::embedding),
    matrix(S::output, "output", W, M::head, E::embedding, E::n_vocab, S::output_bias,
           S::output, none, none, none, O::family, Q::embedding),
    bias(S::output_bias, "output.bias", W, M::head, E::n_vocab, none, none, O::family),
    matrix(S::pooler, "pooler", W, M::pooler, E::n_embd, E::n_embd, S::pooler_bias,
           S::pooler, none, none, none, O::family, Q::matrix),
    bias(S::pooler_bias, "pooler.bias", W, M::pooler, E::n_embd, none, none, O::family),
    rope_factors(S::rope_freqs, "rope_freqs"),
    matrix(S::exit_map, "exit.map", L, M::exit, E::n_embd, E::n_embd, none,
           S::exit_map, none, none, none, O::method, Q::matrix),
    matrix(S::exit_output, "exit.output", L, M::exit, E::n_embd, E::n_vocab, none,
           S::exit_output, none, none, none, O::method, Q::matrix),
    prefix(S::attn_prefix, "attn.prefix", E::n_embd, none, none),
    matrix(S::attn_comp_norm, "attn.comp_norm", L, M::compensation, E::n_embd, E::n_embd, none,
           S::attn_comp_norm, S::attn_norm, none, none, O::method, Q::matrix),
    gain_of_heads(S::attn_q_norm_all, "attn.q_norm_all", E::q, P::query),
    gain_of_heads(S::attn_k_norm_all, "attn.k_norm_all", E::kv, P::key),
    rope_factors(S::rope_freqs_long, "rope_freqs_long"),
    bias(S::attn_sinks, "attn.sinks", L, M::attention, E::heads, none, none, O::family),
    matrix(S::ffn_router, "ffn.router", L, M::experts, E::n_embd, E::experts, S::ffn_router_bias,
           S::ffn_router, S::ffn_norm, none, none, O::family, Q::unchanged),
    bias(S::ffn_router_bias, "ffn.router.bias", L, M::experts, E::experts, none, none, O::family),
    matrix(S::ffn_gate_exps, "ffn.gate_exps", L, M::experts, E::n_embd, E::experts_ff, S::ffn_gate_exps_bias,
           S::ffn_gate_exps, S::ffn_norm, none, none, O::family, Q::matrix),
    matrix(S::ffn_up_exps, "ffn.up_exps", L, M::experts, E::n_embd, E::experts_ff, S::ffn_up_exps_bias,
           S::ffn_gate_exps, S::ffn_norm, none, none, O::family, Q::matrix),
    matrix(S::ffn_down_exps, "ffn.down_exps", L, M::experts, E::expert_ff, E::experts_embd, S::ffn_down_exps_bias,
           S::ffn_down_exps, none, none, none, O::family, Q::matrix),
    bias(S::ffn_gate_exps_bias, "ffn.gate_exps.bias", L, M::experts, E::experts_ff, none, none, O::family),
    bias(S::ffn_up_exps_bias, "ffn.up_exps.bias", L, M::experts, E::experts_ff, none, none, O::family),
    bias(S::ffn_down_exps_bias, "ffn.down_exps.bias", L, M::experts, E::experts_embd, none, none, O::family),
    matrix(S::embd_map, "embd_map", W, M::embedding, E::embedding, E::n_embd, S::embd_map_bias,
           S::embd_map, none, none, none, O::family, Q::matrix),
    bias(S::embd_map_bias, "embd_map.bias", W, M::embedding, E::n_embd, none, none, O::family),
    matrix(S::exit_gate, "exit.gate", W, M::exit, E::n_embd, E::one, S::exit_gate_bias,
           S::exit_gate, none, none, none, O::family, Q::unchanged),
    bias(S::exit_gate_bias, "exit.gate.bias", W, M::exit, E::one, none, none, O::family),
    matrix(S::streams_in, "streams.in", W, M::streams, E::n_embd, E::added_streams, none,
           S::streams_in, none, none, none, O::family, Q::unchanged),
    matrix(S::streams_out, "streams.out", W, M::streams, E::n_embd, E::added_streams, none,
           S::streams_out, none, none, none, O::family, Q::unchanged),
    gain(S::stream_router_norm, "stream.router_norm", L, M::streams, E::n_embd, none, none),
    matrix(S::stream_router, "stream.router", L, M::streams, E::n_embd, E::streams, none,
           S::stream_router, S::stream_router_norm, none, none, O::family, Q::unchanged),
    matrix(S::stream_predict, "stream.predict", L, M::streams, E::streams, E::streams_squared, none,
           S::stream_predict, none, none, none, O::family, Q::unchanged),
    matrix(S::stream_correct, "stream.correct", L, M::streams, E::streams, E::streams, none,
           S::stream_correct, none, none, none, O::family, Q::unchanged),
    matrix(S::laurel_down, "laurel.down", L, M::streams, E::n_embd, E::laurel, none,
           S::laurel_down, S::attn_norm, none, none, O::family, Q::unchanged),
    matrix(S::laurel_up, "laurel.up", L, M::streams, E::laurel, E::n_embd, none,
           S::laurel_up, none, none, none, O::family, Q::unchanged),
    gain(S::laurel_norm, "laurel.norm", L, M::streams, E::n_embd, none, none),
    table(S::layer_input_embd, "layer_input.embd", E::layer_inputs, E::n_vocab, Q::matrix),
    matrix(S::layer_input_map, "layer_input.map", W, M::streams, E::n_embd, E::layer_inputs, none,
           S::layer_input_map, none, none, none, O::family, Q::unchanged),
    gain(S::layer_input_norm, "layer_input.norm", W, M::streams, E::layer_input, none, none),
    gain(S::layer_input_scale, "layer_input.scale", L, M::streams, E::n_embd, none, none),
    matrix(S::layer_input_gate, "layer_input.gate", L, M::streams, E::n_embd, E::layer_input, none,
           S::layer_input_gate, none, none, none, O::family, Q::matrix),
    matrix(S::layer_input_up, "layer_input.up", L, M::streams, E::layer_input, E::n_embd, none,
           S::layer_input_up, none, none, none, O::family, Q::matrix),
    gain(S::layer_input_post_norm, "layer_input.post_norm", L, M::streams, E::n_embd, none, none),
    matrix(S::score, "score", W, M::pooler, E::n_embd, E::one, S::score_bias,
           S::score, none, none, none, O::family, Q::unchanged),
    bias(S::score_bias, "score.bias", W, M::pooler, E::one, none, none, O::family),
};
// clang-format on

}  // namespace slot_table

inline constexpr const auto& kSlots = slot_table::kRows;
constexpr const SlotProperties& properties(Slot slot) { return kSlots[static_cast<size_t>(slot)]; }

// The slots whose properties satisfy the predicate, a lambda without captures, in order.
template <typename Predicate>
consteval auto slots_where(Predicate) {
    constexpr auto count = static_cast<size_t>(std::count_if(kSlots.begin(), kSlots.end(), Predicate{}));
    std::array<Slot, count> out{};
    for (size_t i = 0, next = 0; i < kSlots.size(); ++i) {
        if (Predicate{}(kSlots[i])) out[next++] = kSlots[i].slot;
    }
    return out;
}

inline std::vector<Slot> to_vector(std::span<const Slot> slots) { return {slots.begin(), slots.end()}; }

constexpr const char* slot_name(Slot slot) { return properties(slot).name; }
// Throws Error(input) with the nearest name when there is none such.
Slot slot_from_name(const std::string& name);

constexpr bool is_matrix(Slot slot) { return properties(slot).kind == SlotKind::matrix; }
constexpr bool is_table(Slot slot) { return properties(slot).kind == SlotKind::table; }
constexpr bool is_prefix(Slot slot) { return properties(slot).kind == SlotKind::prefix; }
// Norms, biases and factors: one dimension, float32.
constexpr bool is_vector(Slot slot) { return !is_matrix(slot) && !is_table(slot) && !is_prefix(slot); }
constexpr bool is_score(Slot slot) { return slot == Slot::score || slot == Slot::score_bias; }
constexpr bool is_compensation(Slot slot) { return properties(slot).module == SlotModule::compensation; }

// Slots that a layer without attention, or without FFN, does not have.
constexpr bool belongs_to_attention(Slot slot) {
    return properties(slot).module == SlotModule::attention || is_compensation(slot);
}
constexpr bool belongs_to_experts(Slot slot) { return properties(slot).module == SlotModule::experts; }
constexpr bool belongs_to_ffn(Slot slot) {
    return properties(slot).module == SlotModule::ffn || belongs_to_experts(slot);
}

constexpr std::optional<Slot> bias_of(Slot slot) { return properties(slot).bias; }

// The size that a slot's heads or channels make up. Only of slots that have units.
constexpr Extent unit_extent(Slot slot) {
    const SlotProperties& s = properties(slot);
    return s.units == UnitAxis::rows ? s.out : s.in;
}
// Matrices whose rows or columns are those of heads.
constexpr bool consists_of_heads(Slot slot) {
    return is_matrix(slot) && properties(slot).units && unit_extent(slot) != Extent::n_ff;
}
// Matrices whose rows are those of experts.
constexpr bool consists_of_experts(Slot slot) {
    return is_matrix(slot) && belongs_to_experts(slot) && slot != Slot::ffn_router;
}
// Matrices with one block of n_embd rows for each residual stream but the first.
constexpr bool consists_of_streams(Slot slot) {
    return is_matrix(slot) && properties(slot).out == Extent::added_streams;
}
// The weight expression Heads is for them: its heads are blocks of rows or columns, of heads or of experts.
constexpr bool consists_of_blocks(Slot slot) { return consists_of_heads(slot) || consists_of_experts(slot); }
// attn.o takes heads in along its columns; attn.q, attn.k and attn.v put them out along their rows.
constexpr bool heads_are_columns(Slot slot) {
    return consists_of_heads(slot) && properties(slot).units == UnitAxis::columns;
}
// Its heads are the query heads, not the key/value heads.
constexpr bool has_query_heads(Slot slot) { return properties(slot).units && unit_extent(slot) == Extent::q; }

inline constexpr auto kMatrices =
    slots_where([](const SlotProperties& s) { return s.kind == SlotKind::matrix; });
// The matrices that are multiplied with the same input as this one, itself included: {q, k, v}, {gate, up},
// {o}.
constexpr std::span<const Slot> product_group(Slot matrix) {
    const auto same = [&](Slot other) { return properties(other).group == properties(matrix).group; };
    const auto first = std::find_if(kMatrices.begin(), kMatrices.end(), same);
    return {first, std::find_if_not(first, kMatrices.end(), same)};
}
// The first of each group.
inline constexpr auto kProductGroups = slots_where([](const SlotProperties& s) { return s.group == s.slot; });

struct SlotShape {
    int64_t in = 0;
    int64_t out = 0;
};
// Without a layer: the size that layers have by default.
SlotShape slot_shape(Slot slot, const ModelConfig& config, size_t layer = kWholeModel);
// How many elements a norm with the gain `slot` normalizes at a time: all that there are gains for, or a
// head.
int64_t normalized_width(Slot slot, const ModelConfig& config, size_t layer = kWholeModel);
// Heads or experts of a slot that consists of them, otherwise 0.
int64_t slot_blocks(Slot slot, const ModelConfig& config, size_t layer = kWholeModel);
// Rows or columns of a head, rows of an expert or of a stream; of a slot that consists of them.
int64_t block_size(Slot slot, const ModelConfig& config);
// The shape of a tensor that holds the whole weight, fastest dimension first: experts and streams are a third
// dimension.
std::vector<int64_t> tensor_shape(Slot slot, const ModelConfig& config, size_t layer = kWholeModel);

namespace slot_table {

consteval bool is_consistent() {
    if (kSlots.size() != kSlotCount) return false;
    for (size_t i = 0; i < kSlots.size(); ++i) {
        const SlotProperties& s = kSlots[i];
        if (s.slot != static_cast<Slot>(i)) return false;
        if (s.group.has_value() != (s.kind == SlotKind::matrix)) return false;
        if (s.bias && properties(*s.bias).in != (s.kind == SlotKind::matrix ? s.out : s.in)) return false;
        if (s.norm && properties(*s.norm).kind != SlotKind::norm_gain) return false;
        if (s.group) {
            const auto group = product_group(s.slot);
            if (group.front() != *s.group) return false;
            if (std::find(group.begin(), group.end(), s.slot) == group.end()) return false;
            if (properties(*s.group).in != s.in || properties(*s.group).scope != s.scope) return false;
        }
        if (s.units) {
            const Extent along = unit_extent(s.slot);
            if (along != Extent::q && along != Extent::kv && along != Extent::n_ff) return false;
        }
    }
    return true;
}
static_assert(is_consistent(), "one row per slot, in order; biases, norms and groups that fit");

}  // namespace slot_table

}  // namespace refold
