#include "model/topology.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/text.h"
#include "model/tap.h"

namespace refold {
namespace {

enum class Kind { matrix, table, vector, prefix };

struct SlotInfo {
    Slot slot;
    const char* name;
    Kind kind = Kind::vector;
    std::optional<Slot> bias = std::nullopt;
};

constexpr std::array kSlots = {
    SlotInfo{Slot::attn_norm, "attn.norm", Kind::vector, Slot::attn_norm_bias},
    SlotInfo{Slot::attn_norm_bias, "attn.norm.bias"},
    SlotInfo{Slot::attn_q, "attn.q", Kind::matrix, Slot::attn_q_bias},
    SlotInfo{Slot::attn_k, "attn.k", Kind::matrix, Slot::attn_k_bias},
    SlotInfo{Slot::attn_v, "attn.v", Kind::matrix, Slot::attn_v_bias},
    SlotInfo{Slot::attn_o, "attn.o", Kind::matrix, Slot::attn_o_bias},
    SlotInfo{Slot::attn_q_bias, "attn.q.bias"},
    SlotInfo{Slot::attn_k_bias, "attn.k.bias"},
    SlotInfo{Slot::attn_v_bias, "attn.v.bias"},
    SlotInfo{Slot::attn_o_bias, "attn.o.bias"},
    SlotInfo{Slot::attn_q_norm, "attn.q_norm"},
    SlotInfo{Slot::attn_k_norm, "attn.k_norm"},
    SlotInfo{Slot::attn_prefix_k, "attn.prefix_k", Kind::prefix},
    SlotInfo{Slot::attn_prefix_v, "attn.prefix_v", Kind::prefix},
    SlotInfo{Slot::attn_comp, "attn.comp", Kind::matrix},
    SlotInfo{Slot::attn_comp_ffn, "attn.comp_ffn", Kind::matrix},
    SlotInfo{Slot::attn_comp_o, "attn.comp_o", Kind::matrix},
    SlotInfo{Slot::attn_comp_v, "attn.comp_v", Kind::matrix},
    SlotInfo{Slot::attn_post_norm, "attn.post_norm"},
    SlotInfo{Slot::attn_output_norm, "attn.output_norm", Kind::vector, Slot::attn_output_norm_bias},
    SlotInfo{Slot::attn_output_norm_bias, "attn.output_norm.bias"},
    SlotInfo{Slot::ffn_norm, "ffn.norm", Kind::vector, Slot::ffn_norm_bias},
    SlotInfo{Slot::ffn_norm_bias, "ffn.norm.bias"},
    SlotInfo{Slot::ffn_gate, "ffn.gate", Kind::matrix, Slot::ffn_gate_bias},
    SlotInfo{Slot::ffn_up, "ffn.up", Kind::matrix, Slot::ffn_up_bias},
    SlotInfo{Slot::ffn_down, "ffn.down", Kind::matrix, Slot::ffn_down_bias},
    SlotInfo{Slot::ffn_gate_bias, "ffn.gate.bias"},
    SlotInfo{Slot::ffn_up_bias, "ffn.up.bias"},
    SlotInfo{Slot::ffn_down_bias, "ffn.down.bias"},
    SlotInfo{Slot::ffn_post_norm, "ffn.post_norm"},
    SlotInfo{Slot::ffn_output_norm, "ffn.output_norm", Kind::vector, Slot::ffn_output_norm_bias},
    SlotInfo{Slot::ffn_output_norm_bias, "ffn.output_norm.bias"},
    SlotInfo{Slot::token_embd, "token_embd", Kind::table},
    SlotInfo{Slot::position_embd, "position_embd", Kind::table},
    SlotInfo{Slot::token_types, "token_types", Kind::table},
    SlotInfo{Slot::embd_norm, "embd_norm", Kind::vector, Slot::embd_norm_bias},
    SlotInfo{Slot::embd_norm_bias, "embd_norm.bias"},
    SlotInfo{Slot::output_norm, "output_norm", Kind::vector, Slot::output_norm_bias},
    SlotInfo{Slot::output_norm_bias, "output_norm.bias"},
    SlotInfo{Slot::head_dense, "head.dense", Kind::matrix, Slot::head_dense_bias},
    SlotInfo{Slot::head_dense_bias, "head.dense.bias"},
    SlotInfo{Slot::head_norm, "head.norm", Kind::vector, Slot::head_norm_bias},
    SlotInfo{Slot::head_norm_bias, "head.norm.bias"},
    SlotInfo{Slot::output, "output", Kind::matrix, Slot::output_bias},
    SlotInfo{Slot::output_bias, "output.bias"},
    SlotInfo{Slot::pooler, "pooler", Kind::matrix, Slot::pooler_bias},
    SlotInfo{Slot::pooler_bias, "pooler.bias"},
    SlotInfo{Slot::rope_freqs, "rope_freqs"},
    SlotInfo{Slot::exit_map, "exit.map", Kind::matrix},
};

// The table is in the order of the enumeration.
constexpr bool in_order() {
    for (size_t i = 0; i < kSlots.size(); ++i) {
        if (kSlots[i].slot != static_cast<Slot>(i)) return false;
    }
    return true;
}
static_assert(in_order() && kSlots.back().slot == Slot::exit_map);

constexpr const SlotInfo& info(Slot slot) { return kSlots[static_cast<size_t>(slot)]; }

}  // namespace

const char* slot_name(Slot slot) { return info(slot).name; }

const char* tap_name(Tap tap) {
    constexpr std::array kNames = {
        "layer_input",   "attn_input",     "q",           "k",        "v",         "probabilities",
        "attn_inner",    "attn_projected", "attn_output", "residual", "ffn_input", "ffn_inner",
        "ffn_projected", "ffn_output",     "logits"};
    return kNames.at(static_cast<size_t>(tap));
}

Slot slot_from_name(const std::string& name) {
    std::vector<std::string> known;
    for (const auto& entry : kSlots) {
        if (name == entry.name) return entry.slot;
        known.emplace_back(entry.name);
    }
    fail(ErrorCode::input, "topology", "unknown slot '{}'; {}", name, suggestion(name, known));
}

bool is_matrix(Slot slot) { return info(slot).kind == Kind::matrix; }
bool is_table(Slot slot) { return info(slot).kind == Kind::table; }
bool is_vector(Slot slot) { return info(slot).kind == Kind::vector; }
bool is_prefix(Slot slot) { return info(slot).kind == Kind::prefix; }
bool is_compensation(Slot slot) { return slot >= Slot::attn_comp && slot <= Slot::attn_comp_v; }

// The norms after a post-norm layer's additions belong to the residual stream.
bool belongs_to_attention(Slot slot) { return slot < Slot::attn_output_norm; }
bool belongs_to_ffn(Slot slot) { return slot >= Slot::ffn_norm && slot < Slot::ffn_output_norm; }

std::optional<Slot> bias_of(Slot slot) { return info(slot).bias; }

bool heads_are_columns(Slot slot) { return slot == Slot::attn_o; }

bool consists_of_heads(Slot slot) {
    return slot == Slot::attn_q || slot == Slot::attn_k || slot == Slot::attn_v || slot == Slot::attn_o;
}

SlotShape slot_shape(Slot slot, const ModelConfig& c, size_t position) {
    const int64_t q = c.n_head_of(position) * c.head_dim;
    const int64_t kv = c.n_head_kv_of(position) * c.head_dim;
    const int64_t ff = c.n_ff_of(position);
    switch (slot) {
        case Slot::attn_q: return {c.n_embd, q};
        case Slot::attn_k:
        case Slot::attn_v: return {c.n_embd, kv};
        case Slot::attn_o: return {q, c.n_embd};
        case Slot::attn_comp:
        case Slot::attn_comp_ffn: return {c.n_embd, c.n_embd};
        case Slot::attn_comp_o: return {c.n_embd, q};
        case Slot::attn_comp_v: return {kv, q};
        case Slot::attn_q_bias: return {q, 1};
        case Slot::attn_k_bias:
        case Slot::attn_v_bias: return {kv, 1};
        case Slot::attn_q_norm:
        case Slot::attn_k_norm: return {c.head_dim, 1};
        case Slot::ffn_gate:
        case Slot::ffn_up: return {c.n_embd, ff};
        case Slot::ffn_down: return {ff, c.n_embd};
        case Slot::ffn_gate_bias:
        case Slot::ffn_up_bias: return {ff, 1};
        case Slot::attn_prefix_k:
        case Slot::attn_prefix_v: return {kv, c.n_prefix};
        case Slot::token_embd:
        case Slot::output: return {c.n_embd, c.n_vocab};
        case Slot::output_bias: return {c.n_vocab, 1};
        case Slot::position_embd: return {c.n_embd, c.n_learned_positions};
        case Slot::token_types: return {c.n_embd, c.n_token_types};
        case Slot::exit_map:
        case Slot::head_dense:
        case Slot::pooler: return {c.n_embd, c.n_embd};
        case Slot::rope_freqs: return {c.rope.dims / 2, 1};
        default: return {c.n_embd, 1};  // norms over the residual stream, and biases added to it
    }
}

std::vector<HeadRef> expand(const Heads& heads) {
    std::vector<HeadRef> out;
    for (const auto& run : heads.runs) {
        for (int64_t h = 0; h < run.count; ++h) out.push_back({run.tensor, run.first + h});
    }
    return out;
}

Heads collapse(const std::vector<HeadRef>& heads) {
    Heads out;
    for (const auto& ref : heads) {
        if (!out.runs.empty()) {
            auto& last = out.runs.back();
            if (last.tensor == ref.tensor && last.first + last.count == ref.head) {
                ++last.count;
                continue;
            }
        }
        out.runs.push_back({ref.tensor, ref.head, 1});
    }
    return out;
}

std::vector<std::string> tensors_of(const Expression& expression) {
    std::vector<std::string> names;
    const auto add = [&](const std::string& name) {
        if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
            names.push_back(name);
    };
    const auto visit = [&](const auto& self, const auto& e) -> void {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, Dense>) {
            add(e.tensor);
        } else if constexpr (std::is_same_v<E, Heads>) {
            for (const auto& run : e.runs) add(run.tensor);
        } else if constexpr (std::is_same_v<E, LowRank>) {
            for (const auto& name : {e.u, e.v, e.scale}) add(name);
        } else if constexpr (std::is_same_v<E, Tucker>) {
            for (const auto& name : {e.core, e.model, e.head, e.roles}) add(name);
        } else {
            std::visit([&](const auto& base) { self(self, base); }, e.base);
            self(self, e.term);
        }
    };
    std::visit([&](const auto& e) { visit(visit, e); }, expression);
    return names;
}

bool is_small_factor(const Expression& expression, const std::string& tensor) {
    if (const auto* plus = std::get_if<Plus>(&expression))
        return tensor == plus->term.scale || is_small_factor(base_of(expression), tensor);
    if (const auto* e = std::get_if<LowRank>(&expression)) return tensor == e->scale;
    if (const auto* e = std::get_if<Tucker>(&expression)) return tensor == e->head || tensor == e->roles;
    return false;
}

Expression base_of(const Expression& expression) {
    const auto* plus = std::get_if<Plus>(&expression);
    if (plus == nullptr) return expression;
    return std::visit([](const auto& base) { return Expression(base); }, plus->base);
}

const Expression& Topology::at(size_t position, Slot slot) const {
    const auto found = positions.at(position).find(slot);
    if (found == positions[position].end()) {
        fail(ErrorCode::internal, "topology", "position {} has no {}", position, slot_name(slot));
    }
    return found->second;
}

bool Topology::has(size_t position, Slot slot) const { return positions.at(position).contains(slot); }

const AttentionSource& Topology::source(size_t position) const {
    static const AttentionSource own;
    const auto found = sources.find(position);
    return found == sources.end() ? own : found->second;
}

bool Topology::lends_probabilities(size_t position) const {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const auto& entry) { return entry.second.probabilities == position; });
}

bool Topology::lends_kv(size_t position) const {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const auto& entry) { return entry.second.kv == position; });
}

bool Topology::is_replaced(size_t position, Slot slot) const {
    const AttentionSource& from = source(position);
    switch (slot) {
        case Slot::attn_q:
        case Slot::attn_q_bias:
        case Slot::attn_q_norm: return from.probabilities.has_value();
        case Slot::attn_k:
        case Slot::attn_k_bias:
        case Slot::attn_k_norm: return !from.own();
        case Slot::attn_v:
        case Slot::attn_v_bias: return from.kv.has_value();
        default: return false;
    }
}

}  // namespace refold
