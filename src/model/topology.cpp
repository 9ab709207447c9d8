#include "model/topology.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/text.h"

namespace refold {
namespace {

struct SlotName {
    Slot slot;
    const char* name;
};
constexpr std::array kSlotNames = {
    SlotName{Slot::attn_norm, "attn.norm"},     SlotName{Slot::attn_q, "attn.q"},
    SlotName{Slot::attn_k, "attn.k"},           SlotName{Slot::attn_v, "attn.v"},
    SlotName{Slot::attn_o, "attn.o"},           SlotName{Slot::attn_q_bias, "attn.q.bias"},
    SlotName{Slot::attn_k_bias, "attn.k.bias"}, SlotName{Slot::attn_v_bias, "attn.v.bias"},
    SlotName{Slot::attn_o_bias, "attn.o.bias"}, SlotName{Slot::ffn_norm, "ffn.norm"},
    SlotName{Slot::ffn_gate, "ffn.gate"},       SlotName{Slot::ffn_up, "ffn.up"},
    SlotName{Slot::ffn_down, "ffn.down"},       SlotName{Slot::ffn_gate_bias, "ffn.gate.bias"},
    SlotName{Slot::ffn_up_bias, "ffn.up.bias"}, SlotName{Slot::ffn_down_bias, "ffn.down.bias"},
    SlotName{Slot::token_embd, "token_embd"},   SlotName{Slot::output_norm, "output_norm"},
    SlotName{Slot::output, "output"},           SlotName{Slot::rope_freqs, "rope_freqs"},
};

}  // namespace

const char* slot_name(Slot slot) {
    return std::find_if(kSlotNames.begin(), kSlotNames.end(),
                        [&](const SlotName& s) { return s.slot == slot; })
        ->name;
}

Slot slot_from_name(const std::string& name) {
    std::vector<std::string> known;
    for (const auto& entry : kSlotNames) {
        if (name == entry.name) return entry.slot;
        known.emplace_back(entry.name);
    }
    fail(ErrorCode::input, "topology", "unknown slot '{}'; {}", name, suggestion(name, known));
}

bool is_matrix(Slot slot) {
    switch (slot) {
        case Slot::attn_q:
        case Slot::attn_k:
        case Slot::attn_v:
        case Slot::attn_o:
        case Slot::ffn_gate:
        case Slot::ffn_up:
        case Slot::ffn_down:
        case Slot::token_embd:
        case Slot::output: return true;
        default: return false;
    }
}

bool heads_are_columns(Slot slot) { return slot == Slot::attn_o; }

SlotShape slot_shape(Slot slot, const ModelConfig& c) {
    const int64_t q = c.n_head * c.head_dim;
    const int64_t kv = c.n_head_kv * c.head_dim;
    switch (slot) {
        case Slot::attn_q: return {c.n_embd, q};
        case Slot::attn_k:
        case Slot::attn_v: return {c.n_embd, kv};
        case Slot::attn_o: return {q, c.n_embd};
        case Slot::attn_q_bias: return {q, 1};
        case Slot::attn_k_bias:
        case Slot::attn_v_bias: return {kv, 1};
        case Slot::ffn_gate:
        case Slot::ffn_up: return {c.n_embd, c.n_ff};
        case Slot::ffn_down: return {c.n_ff, c.n_embd};
        case Slot::ffn_gate_bias:
        case Slot::ffn_up_bias: return {c.n_ff, 1};
        case Slot::token_embd:
        case Slot::output: return {c.n_embd, c.n_vocab};
        case Slot::rope_freqs: return {c.rope.dims / 2, 1};
        case Slot::attn_norm:
        case Slot::attn_o_bias:
        case Slot::ffn_norm:
        case Slot::ffn_down_bias:
        case Slot::output_norm: return {c.n_embd, 1};
    }
    fail(ErrorCode::internal, "topology", "slot without a shape");
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
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    };
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        add(dense->tensor);
    } else {
        for (const auto& run : std::get<Heads>(expression).runs) add(run.tensor);
    }
    return names;
}

const Expression& Topology::at(size_t position, Slot slot) const {
    const auto found = positions.at(position).find(slot);
    if (found == positions[position].end()) {
        fail(ErrorCode::internal, "topology", "position {} has no {}", position, slot_name(slot));
    }
    return found->second;
}

bool Topology::has(size_t position, Slot slot) const { return positions.at(position).contains(slot); }

}  // namespace refold
